"""Routes about the caller itself."""
