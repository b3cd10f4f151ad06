"""The HTTP API in its three dialects, push, and webhooks, in front of any database."""
