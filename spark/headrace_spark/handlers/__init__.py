"""Spark handlers: consumers that transform large batches as DataFrames."""
