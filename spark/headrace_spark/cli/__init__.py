"""The commands of `headrace spark`."""
