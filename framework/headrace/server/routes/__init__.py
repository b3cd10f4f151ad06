"""Routes of the management plane, one file per topic. Each file's `routes` makes the handlers,
with paths that lack the prefix."""
