"""What operators look at over time: the audit log, and samples for charts."""
