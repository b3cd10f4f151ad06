"""The examples of streaming queries. Each is killed in the middle, starts again with its checkpoint, and its result is exact.

Each starts two sessions of its own, which is why this isn't in the usual run of the tests.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import store
from tests.spark.filling import read
from tests.spark.processes import PATIENCE, environment

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

EXAMPLES = Path(__file__).parents[2] / "examples/spark_streaming"
COUNT, MAX_ROWS = 100, 25
ORDERS = [
    {"id": n, "region": "eu" if n % 3 else "us", "status": "paid" if n % 2 else "new", "total": f"{n}.50"}
    for n in range(COUNT)
]


def key(order: dict[str, Any]) -> str:
    return f"orders.{order['id'] % 7}"


async def create(database: store.Database, *streams: str) -> None:
    """Create the stream `orders` with its messages, and empty streams."""
    await publish(database, "orders", [(key(order), order) for order in ORDERS])
    for stream in streams:
        await store.create_stream(database, stream)


async def publish(database: store.Database, stream: str, messages: list[tuple[str, Any]]) -> None:
    await store.create_stream(database, stream)
    keys, data = [key for key, _ in messages], [json.dumps(data) for _, data in messages]
    await database.fetch("select headrace.publish_many($1, $2::text[], $3::json[])", stream, keys, data)


async def kill_and_run_again(example: str, database: store.Database, dsn: str, directory: Path, result: str) -> None:
    """Start an example, kill its processes once a part of the stream `result` is there, and run it to its end.

    A micro-batch that has published but isn't in the checkpoint is repeated.
    """
    with (directory / "log").open("wb") as log:
        words = ("spark", "run", f"{EXAMPLES / example}:publish", "--", str(directory / "checkpoint"), str(MAX_ROWS))

        def start() -> subprocess.Popen[bytes]:
            command, variables = [sys.executable, "-m", "headrace.cli.main", *words], environment(HEADRACE_DATABASE=dsn)
            return subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd=directory)

        def logged() -> str:
            return (directory / "log").read_text()

        async def published() -> int:
            count: int = await database.fetchval(f"select count(*) from headrace_streams.{result}")
            return count

        with ended(start()) as process:
            end = time.monotonic() + PATIENCE
            while not await published():  # each query takes its time
                assert process.poll() is None, logged()
                assert time.monotonic() < end, logged()
        part = await published()
        with ended(start()) as process:
            assert process.wait(PATIENCE) == 0, logged()
        assert await published() > part, "it was killed too late"


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process, its Java and their workers at the end of the block."""
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            family = [parent, *parent.children(recursive=True)]
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(family)
        process.wait()


async def test_each_write_of_foreach_batch_is_published_once(
    database: store.Database, dsn: str, tmp_path: Path
) -> None:
    await create(database, "paid", "regions")
    await kill_and_run_again("foreach_batch.py", database, dsn, tmp_path, "paid")
    paid = [order for order in ORDERS if order["status"] == "paid"]
    assert [(key, json.loads(data)) for _, key, data in await read(database, "paid")] == [(key(o), o) for o in paid]
    sums: dict[str, tuple[int, Decimal]] = {}
    for _, _, data in await read(database, "regions"):
        row = json.loads(data)
        count, total = sums.get(row["region"], (0, Decimal(0)))
        sums[row["region"]] = count + row["orders"], total + Decimal(row["total"])
    for region, found in sums.items():
        totals = [Decimal(order["total"]) for order in paid if order["region"] == region]
        assert found == (len(totals), sum(totals))
    assert sums.keys() == {"eu", "us"}


async def test_the_state_of_each_key_counts_each_message_once(
    database: store.Database, dsn: str, tmp_path: Path
) -> None:
    await create(database, "running")
    await kill_and_run_again("running_totals.py", database, dsn, tmp_path, "running")
    found: dict[str, list[Any]] = {}
    for _, its_key, data in await read(database, "running"):
        found.setdefault(its_key, []).append(json.loads(data))
    wanted: dict[str, list[Any]] = {}
    for order in ORDERS:
        before = wanted.setdefault(key(order), [])
        total = Decimal(before[-1]["total"] if before else 0) + Decimal(order["total"])
        before.append({"orders": len(before) + 1, "total": str(total)})
    assert found == wanted


async def test_each_pair_of_two_streams_is_joined_once(database: store.Database, dsn: str, tmp_path: Path) -> None:
    """The payments are in the reverse order, so most of them come in another micro-batch than their orders."""
    await create(database, "settled")
    paid = [order for order in reversed(ORDERS) if order["status"] == "paid"]
    payments = [("payments", {"order": order["id"], "amount": order["total"]}) for order in paid]
    await publish(database, "payments", payments)
    await kill_and_run_again("join.py", database, dsn, tmp_path, "settled")
    settled = sorted((json.loads(data)["id"], key, data) for _, key, data in await read(database, "settled"))
    assert [(its_key, json.loads(data)) for _, its_key, data in settled] == [
        (key(order), {"id": order["id"], "total": order["total"], "amount": order["total"]})
        for order in sorted(paid, key=lambda order: order["id"])
    ]
