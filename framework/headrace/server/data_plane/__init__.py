"""The calls that clients make for every message: publish, receive, ack, nack, extend, and webhooks."""
