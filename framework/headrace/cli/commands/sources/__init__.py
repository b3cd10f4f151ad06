"""The commands of `headrace source`."""
