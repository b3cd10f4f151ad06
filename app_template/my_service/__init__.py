"""my-service: what becomes of an order."""
