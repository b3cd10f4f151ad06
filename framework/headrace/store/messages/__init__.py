"""Calls about messages: publish, lease, settle, seek, replay, and dead letters."""
