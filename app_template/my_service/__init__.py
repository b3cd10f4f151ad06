"""my-service: ships orders."""
