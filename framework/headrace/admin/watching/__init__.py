"""The audit log, the live state and samples: the calls, and what entries say."""
