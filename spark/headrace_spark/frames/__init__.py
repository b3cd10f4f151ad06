"""Between messages and DataFrames: schemas, batches on their way in, results on their way out."""
