"""The commands of `headrace consumer`."""
