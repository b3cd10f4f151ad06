"""The background work of a server: jobs, and the records of recent events."""
