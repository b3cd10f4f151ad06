"""The management plane, a file for each topic. Each has `routes`, which makes the handlers; their paths are without the prefix."""
