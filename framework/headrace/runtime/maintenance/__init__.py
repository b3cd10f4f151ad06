"""Background work of a process for its database: retention, schedule, vacuum, and the survey of states for telemetry."""
