"""Output of commands: tables for people, JSON for programs, messages on standard error, progress, logs."""
