"""Converts messages to DataFrames and back: schemas, incoming batches, outgoing results."""
