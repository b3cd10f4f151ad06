"""Output of commands: tables for people, JSON, notices, progress, logs."""
