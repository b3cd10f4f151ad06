"""Spark handlers: functions that take a large batch as a DataFrame."""
