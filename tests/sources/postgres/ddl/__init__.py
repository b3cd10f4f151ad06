"""The documentation's table of schema changes, and a case that runs each of its rows."""
