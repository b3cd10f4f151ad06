"""Spark sessions: Java found, settings read, a session made, and a job tried."""
