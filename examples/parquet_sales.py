"""The same question as in spark_sales.py, asked without Spark: the files of an archive are for any reader.

python examples/parquet_sales.py archive/sales
"""

import json
import sys
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow.dataset  # type: ignore[import-untyped, unused-ignore]


def rows(path: str) -> list[dict[str, Any]]:
    """The rows of the table, as their last changes have left them."""
    changes = pyarrow.dataset.dataset(path, partitioning="hive").to_table(columns=["key", "seq", "data"]).sort_by("seq")
    last = dict(zip(changes["key"].to_pylist(), changes["data"].to_pylist(), strict=True))
    return [change["record"] for change in map(json.loads, last.values()) if change["action"] != "delete"]


def main(path: str) -> None:
    paid: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows(path):
        if row["status"] == "paid":
            paid[row["region"]] += Decimal(row["total"])
    for region in sorted(paid):
        print(region, paid[region])


if __name__ == "__main__":
    main(sys.argv[1])
