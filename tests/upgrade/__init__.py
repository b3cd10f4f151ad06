"""Upgrades of the schema while old and new processes run side by side."""
