"""The data source `headrace`: streams read and written by Spark."""
