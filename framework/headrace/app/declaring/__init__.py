"""The decorators, with the types of their settings."""
