"""Leasing: the lease calls of a consumer, and the waits between them. Used by workers and by the server."""
