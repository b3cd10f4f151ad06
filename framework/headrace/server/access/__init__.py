"""Access control: tokens and their scopes."""
