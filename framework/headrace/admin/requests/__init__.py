"""The requests of the HTTP API whose routes and calls follow from their description."""
