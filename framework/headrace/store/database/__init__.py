"""A database: its calls, failure detection, errors, retries, and migrations of the schema."""
