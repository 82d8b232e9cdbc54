"""The message path's pure machines: the versioned store, its rules, and the ledger of batches."""
