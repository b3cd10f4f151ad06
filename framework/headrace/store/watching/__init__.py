"""The audit log, the live state, and samples for charts."""
