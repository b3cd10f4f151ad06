"""Pipelines over the whole history of a stream."""
