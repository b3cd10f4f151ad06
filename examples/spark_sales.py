"""From change capture to Parquet to a query: what has been paid in each region, by the changes of a table that are archived.

headrace source postgres add --table public.sales       # a table with region, status and total; see docs/spark.md
headrace serve                                          # captures, until it is stopped
headrace spark run archive --stream sales --path archive/sales --consumer archive
headrace spark run examples/spark_sales.py:paid -- archive/sales
"""

from pyspark.sql import SparkSession

PAID = """
    with versions as (
        select from_json(data, 'action string, record struct<region: string, status: string, total: decimal(12, 2)>') as change,
               row_number() over (partition by key order by seq desc) as age
        from changes
    )
    select change.record.region, count(*) as sales, sum(change.record.total) as total
    from versions
    where age = 1 and change.action != 'delete' and change.record.status = 'paid'
    group by all
    order by region
"""


def paid(spark: SparkSession, path: str) -> None:
    """Print it. Of each row of the table its last change counts."""
    spark.read.parquet(path).createOrReplaceTempView("changes")
    spark.sql(PAID).show()
