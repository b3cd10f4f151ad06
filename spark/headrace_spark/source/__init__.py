"""The data source `headrace`: Spark reads and writes streams.

    spark.read.format("headrace").option("stream", "orders").load()
    spark.readStream.format("headrace").option("stream", "orders").load()
    df.write.format("headrace").mode("append").option("stream", "results").save()

A message is read by these modules, in this order:

    names        the names of the options
    options      parses the options
    tables       keeps the options of a table in Spark's catalog
    connection   connects to the database and translates its errors
    queries      short queries, and which streams there are
    schema       the columns, with a typed payload if the options say so
    ranges       asks the database how far a stream is complete, and cuts a range into queries
    pushdown     selects the Spark filters that the database evaluates
    reader       reads ranges as a DataFrame, and a task's part of them as Arrow
    rows         makes the wanted columns of what the database sends
    following    the streams of a streaming query: which have joined or gone, and how far each is complete
    streaming    reads range after range, by offsets that are kept in a checkpoint
    format       the entry point that Spark calls
    catalog      makes a table in Spark's catalog for each stream

`headrace_spark.positions` and `headrace_spark.typed` hold what needs no database.

A message is written by these modules:

    staging      stages a task's rows until they are committed
    writer       commits on the driver, once
"""
