"""The commands below `headrace spark`."""
