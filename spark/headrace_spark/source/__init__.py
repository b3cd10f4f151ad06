"""The data source `headrace`: Spark reads and writes streams.

    spark.read.format("headrace").option("stream", "orders").load()
    spark.readStream.format("headrace").option("stream", "orders").load()
    df.write.format("headrace").mode("append").option("stream", "results").save()

A message is read by these modules, in this order:

    options      parses the options
    connection   connects to the database and translates its errors
    marks        computes the seq up to which nothing can appear any more, in plain code
    ranges       asks the database for that seq, and cuts a range into queries
    pushdown     selects the Spark filters that the database evaluates
    reader       reads a range as a DataFrame, and a task's part of it as Arrow
    streaming    reads range after range, by offsets that are kept in a checkpoint
    format       the entry point that Spark calls

A message is written by these modules:

    staging      stages a task's rows until they are committed
    writer       commits on the driver, once
"""
