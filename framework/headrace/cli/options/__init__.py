"""Options of commands, and what they refer to: a server, a consumer, a time, a size."""
