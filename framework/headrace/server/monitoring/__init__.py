"""Health, readiness and metrics of a server process."""
