"""Maintenance of streams: retention, scheduled messages, vacuum, and the leader that does it."""
