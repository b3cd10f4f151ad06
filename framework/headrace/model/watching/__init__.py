"""The types that operators watch over time: the audit log, and samples for charts."""
