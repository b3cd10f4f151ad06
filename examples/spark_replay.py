"""A stream's whole history through a function into another stream: here without what identifies people.

    headrace stream add orders-public
    headrace spark run replay --stream orders --into orders-public --checkpoint checkpoints/public \\
        --function examples/spark_replay.py:public

Run again, it goes on with what has come since.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

ORDER = "id bigint, region string, status string, total decimal(12, 2), email string"


def public(messages: DataFrame) -> DataFrame:
    """Of each order what everybody may know. It leaves `seq` in, by which the order of each key is kept."""
    order = sql.from_json("data", ORDER)
    shown = sql.struct(order.id.alias("id"), order.region.alias("region"), order.total.alias("total"))
    return messages.select("key", "seq", shown.alias("data"))
