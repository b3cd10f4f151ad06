"""Connections to Postgres: the pool, failure detection, errors, retries, and migrations of the schema."""
