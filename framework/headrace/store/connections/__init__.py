"""One connection to Postgres: what it adds to the driver's, what stays taken from the pool between two calls, and transactions of user code."""
