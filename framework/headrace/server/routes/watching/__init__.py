"""Routes for operators who look on: the live state, samples for charts, and the audit log."""
