"""Reading of messages from files and pipes."""
