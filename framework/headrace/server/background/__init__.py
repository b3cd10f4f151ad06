"""What a server does in the background: jobs, and the records of recent events."""
