"""The Spark side of Headrace: handlers that transform large batches as DataFrames, streams as a data source, and pipelines.

Install it with `pip install 'headrace[spark]'`. The core knows nothing of it.
"""
