"""Routes of further databases."""
