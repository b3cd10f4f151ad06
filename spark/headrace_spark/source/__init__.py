"""The data source `headrace`: streams read and written by Spark.

    spark.read.format("headrace").option("stream", "orders").load()
    spark.readStream.format("headrace").option("stream", "orders").load()
    df.write.format("headrace").mode("append").option("stream", "results").save()

The way of a message out of a stream, and the files in its order:

    options      what was asked for
    connection   where the database is, and errors as Headrace tells them
    marks        up to which seq nothing can appear any more: plain code
    ranges       that, and how a range is cut into queries, asked of the database
    pushdown     which of Spark's filters the database makes
    reader       a range as a DataFrame; and how a task reads its part, as Arrow
    streaming    range after range, by offsets that are kept in a checkpoint
    format       the front door to all this

and of one into it:

    staging      a task's rows, kept apart until they count
    writer       what the driver commits, once
"""
