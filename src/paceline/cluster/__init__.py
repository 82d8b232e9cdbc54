"""What the workers of the message path run on: one driver per file."""
