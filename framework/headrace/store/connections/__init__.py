"""Connections to Postgres: what one adds to the driver's, their pool, and transactions of user code."""
