"""One module per peer: how its documentation says that it is used, with its settings."""
