"""Routes of the management plane, one file per topic. Each file's `ROUTES` has the handlers, with paths that lack the
prefix."""
