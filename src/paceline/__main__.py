"""`python -m paceline`."""

from paceline.cli.main import app

app(prog_name="paceline")
