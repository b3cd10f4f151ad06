"""The commands of `headrace stream`."""
