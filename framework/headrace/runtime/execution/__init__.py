"""Execution of messages: actors, the calls of handlers, and what follows from their failures."""
