"""Where messages come from that nobody publishes: webhooks."""
