"""The command line: `paceline`, or `python -m paceline`."""
