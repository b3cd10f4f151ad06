"""Programs of the tests of lakes, each a separate process with a session that has S3A. They print what they found as
JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.model.errors import HeadraceError
from tests.spark.lake.store import BUCKET, Store
from tests.spark.processes import PATIENCE
from tests.spark.written import Written

ROOT = Path(__file__).parents[3]
LAKE = f"s3a://{BUCKET}/orders"

CUTS: dict[str, tuple[str, str, bool]] = {
    "a task's files are moved": ("COPY", r"/_temporary/\d+/task_.*\.parquet$", True),
    "before the manifest": ("COPY", r"/_headrace/batches/\d+\.json$", False),
    "after the manifest": ("COPY", r"/_headrace/batches/\d+\.json$", True),
    "between the copy and the deletion of a move": ("COPY", r"/orders/day=.*\.parquet$", True),
    "between two moves": ("DELETE", r"/_headrace/writing/[^_]*/day=.*\.parquet$", True),
    "the end of a batch": ("COPY", r"/_headrace/checkpoint/commits/\d+$", False),
}
"""Where a run is cut off: the method and path of a request, and whether the store has still done what it asked for."""


def run(store: Store, program: str, directory: Path, *arguments: str, **variables: str) -> tuple[Any, str]:
    """Run a program of this module. Returns what it printed, and its errors."""
    code = (
        f"import sys; sys.path[1:1] = {[str(ROOT), *sys.path]!r}; from tests.spark.lake.program import {program};"
        f" {program}(*sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, store.endpoint, *arguments], cwd=directory, env=store.variables(**variables),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE * 3, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def publish(written: Written, count: int) -> None:
    """Publish messages on two days, which follow those that are there."""
    written.fetch(
        f"""with last as (select coalesce(max(seq), 0) as n from headrace_streams.orders)
            select headrace.publish('orders', 'orders.' || g % 7, json_build_object('n', last.n + g))
            from last, generate_series(1, {count}) as g"""
    )
    written.fetch(
        """update headrace_streams.orders set created_at = timestamptz '2030-01-01 12:00:00+00' + seq % 2 * interval '1
        day'
           where created_at < '2030-01-01'"""
    )


def listed() -> list[int]:
    """Return the seqs that any reader sees that lists the bucket."""
    import pyarrow.dataset
    from pyarrow import fs

    files, base = fs.FileSystem.from_uri(f"s3://{BUCKET}/orders")
    found = files.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    paths = [
        one.path for one in found if "/day=" in one.path and "/_" not in one.path and one.path.endswith(".parquet")
    ]
    if not paths:
        return []
    rows: Any = pyarrow.dataset.dataset(paths, filesystem=files)
    return sorted(rows.to_table(columns=["seq"])["seq"].to_pylist())


def cuts(endpoint: str, dsn: str, *names: str) -> None:
    """Archive a stream, cut off at each of these points once. Whatever was cut, no row is listed twice, and the next
    run completes it. Then read the history, give the archive tables, merge its files, and replay it."""
    from deltalake import DeltaTable
    from pyiceberg.catalog.sql import SqlCatalog

    from headrace_spark import archive, history, merge, replay, session, stop
    from headrace_spark.lake.iceberg import catalog_properties

    store, written = Store(endpoint), Written(dsn)
    spark = session()
    found: dict[str, Any] = {}
    for name in names:
        method, path, after = CUTS[name]
        publish(written, 30)
        with store.cut(method, path, after=after):
            try:
                archive("orders", LAKE, database=dsn, partitions=2)
                raise AssertionError(f"{name}: the run was not cut off")
            except HeadraceError as error:
                print(name, type(error).__name__, str(error)[:300], file=sys.stderr)
        left = listed()
        report = archive("orders", LAKE, database=dsn, partitions=2)
        found[name] = {"left": left, "rows": report.rows, "listed": listed()}
    publish(written, 10)
    live = sorted(row.seq for row in history("orders", LAKE, database=dsn).select("seq").collect())
    archive("orders", LAKE, database=dsn, tables=["delta", "iceberg"])
    table, catalog = f"s3://{BUCKET}/orders", SqlCatalog("headrace", **catalog_properties(dsn))
    merges = [merge(LAKE, database=dsn, grace=0, now=datetime(2030, 1, 4, tzinfo=UTC)).batches for _ in range(2)]
    replayed = replay(
        lambda rows: rows.select("key", "seq", "data"), "copies", path=LAKE, checkpoint=f"{LAKE}-replay", database=dsn
    )
    count = spark.read.parquet(LAKE).count()
    found |= {
        "history": live,
        "merges": merges,
        "merged": listed(),
        "delta": sorted(DeltaTable(table).to_pyarrow_table()["seq"].to_pylist()),
        "iceberg": sorted(catalog.load_table("headrace.orders").scan().to_arrow()["seq"].to_pylist()),
        "replayed": replayed.rows,
        "parquet": count,
    }
    stop()
    print(json.dumps(found))


def confide(endpoint: str, dsn: str, place: str) -> None:
    """Archive with everything logged, and fail in every way, to see whether a secret is shown."""
    import logging

    from headrace_spark import archive, session, stop
    from tests.spark.on_cluster import _save_pages

    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)
    spark = session()
    publish(Written(dsn), 20)
    archive("orders", LAKE, database=dsn, delta=True)
    secret = spark.conf.get("spark.hadoop.fs.s3a.secret.key")
    for path in ("s3a://nosuch-bucket/orders", f"s3a://KEY:{secret}@{BUCKET}/orders"):
        try:
            archive("orders", path, database=dsn)
            raise AssertionError("it did not fail")
        except HeadraceError:
            traceback.print_exc()
    store = Store(endpoint)
    with store.cut("COPY", r"/_headrace/batches/\d+\.json$"):
        publish(Written(dsn), 5)
        try:
            archive("orders", LAKE, database=dsn)
        except HeadraceError:
            traceback.print_exc()
    _save_pages(spark, Path(place) / "pages")
    stop()
    print(json.dumps({}))
