"""Typed payloads of the data source, in plain code without I/O: their types from a sample, and their column in a task."""
