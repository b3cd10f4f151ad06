"""The pipeline `replay`: a history goes through a function into another stream, once, in the order of each key."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownStream
from headrace_spark.lake.files import CantKeepFiles, LocalFiles
from headrace_spark.pipelines.archive import archive
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.functions import NoFunction, load_function
from headrace_spark.pipelines.replay import Identity, replay
from headrace_spark.pipelines.running import PipelineFailed, Report
from tests.spark.filling import fill, publish, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.asyncio


def doubled(rows: DataFrame) -> DataFrame:
    """Return two rows for each row, in random order."""
    from pyspark.sql import functions as sql

    n = sql.get_json_object("data", "$.n").cast("long")
    return rows.select(
        "key", "seq", n.alias("n"), sql.explode(sql.array(sql.lit("a"), sql.lit("b"))).alias("part")
    ).orderBy(sql.rand(1))


@pytest.fixture
def run(spark: SparkSession, dsn: str, tmp_path: Path) -> Any:
    """Replay `orders` into `copies`, outside of the event loop."""

    async def run(function: Any = doubled, **options: Any) -> Report:
        settings = {"stream": "orders", "checkpoint": tmp_path / "replay", **options}
        into = settings.pop("into", "copies")
        return await anyio.to_thread.run_sync(
            lambda: replay(function, into, spark=spark, database=dsn, partitions=2, **settings)
        )

    return run


def by_key(messages: list[tuple[int, str, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for _, key, data in messages:
        found[key].append(json.loads(data)["n"])
    return found


async def test_the_order_of_each_key_is_kept_over_batches_and_what_was_published_is_not_published_again(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 60)
    await store.create_stream(database, "copies")
    report = await run(max_rows=25)
    assert (report.rows, report.batches) == (60, 3)
    made = by_key(await read(database, "copies"))
    assert made == {f"orders.{k}": sorted([n for n in range(1, 61) if n % 7 == k] * 2) for k in range(7)}
    assert json.loads((await read(database, "copies"))[0][2]).keys() == {"n", "part"}

    for name in ("2", ".2.crc"):  # as if it was killed after the last batch was published, before Spark recorded it
        (tmp_path / "replay/checkpoint/commits" / name).unlink(missing_ok=True)
    await publish(database, "orders", 60, 64)
    await run(max_rows=25)
    assert sorted(n for ns in by_key(await read(database, "copies")).values() for n in ns) == sorted(
        [*range(1, 65)] * 2
    )


async def test_one_process_at_a_time_runs_a_replay(
    run: Any, database: store.Database, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_spark.pipelines.database.LOCK_TIMEOUT", 0.2)
    await fill(database, "orders", 3)
    await store.create_stream(database, "copies")
    files = LocalFiles(str(tmp_path / "replay"))
    files.create("replay.json", msgspec.json.encode(Identity(id="one", source="stream:orders", into="copies")))

    def begin() -> AbstractContextManager[None]:
        with open_database(dsn) as database_connection:
            return database_connection.sole_use("replay", "one", files.root)

    with await anyio.to_thread.run_sync(begin):
        with pytest.raises(CantKeepFiles, match=r"Another process runs this replay, .*\. Run one at a time"):
            await run(lambda rows: rows)
        assert await read(database, "copies") == []
    assert (await run(lambda rows: rows)).rows == 3


@pytest.mark.long
async def test_an_archive_is_replayed_batch_by_batch_and_goes_on_with_what_was_archived_since(
    run: Any, spark: SparkSession, dsn: str, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 30, days=2)
    await store.create_stream(database, "copies")

    async def archived() -> None:
        await anyio.to_thread.run_sync(
            lambda: archive("orders", tmp_path / "a", spark=spark, database=dsn, partitions=1, max_rows=20)
        )

    await archived()
    options = {"stream": None, "path": tmp_path / "a"}
    report = await run(lambda rows: rows, **options)
    assert (report.rows, report.batches) == (30, 2)
    assert [(key, data) for _, key, data in await read(database, "copies")] != []
    (tmp_path / "replay/done/1").unlink()  # killed before it was recorded that the second batch is done
    await publish(database, "orders", 30, 40)
    await archived()
    assert (await run(lambda rows: rows, **options)).batches == 2
    made = by_key(await read(database, "copies"))
    assert made == {f"orders.{k}": [n for n in range(1, 41) if n % 7 == k] for k in range(7)}


async def test_parquet_files_that_are_no_archive_can_be_replayed(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await store.create_stream(database, "copies")
    (tmp_path / "files").mkdir()
    table = pa.table({"key": ["a.1", "a.2"], "data": ['{"n":1}', '{"n":2}'], "more": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "files/some.parquet")
    await run(lambda rows: rows, stream=None, path=tmp_path / "files")
    assert by_key(await read(database, "copies")) == {"a.1": [1], "a.2": [2]}
    with pytest.raises(InvalidInput, match="There is nothing to replay"):
        await run(lambda rows: rows, stream=None, path=tmp_path / "nothing", checkpoint=tmp_path / "c")


async def test_what_cannot_be_replayed_is_reported_in_a_sentence(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 3)
    with pytest.raises(UnknownStream, match="copies"):
        await run()
    with pytest.raises(ConfigurationError, match="into itself"):
        await run(into="orders")
    with pytest.raises(ConfigurationError, match="either a stream or a path"):
        await run(path=tmp_path)
    await store.create_stream(database, "copies")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("x")
    with pytest.raises(CantKeepFiles, match="is no checkpoint of a replay"):
        await run(checkpoint=tmp_path / "full")
    with pytest.raises(InvalidInput, match="returned int, and must return a DataFrame"):
        await run(lambda rows: 1)
    with pytest.raises(InvalidInput, match="key"):
        await run(lambda rows: rows.select("seq"))
    with pytest.raises(PipelineFailed, match="KeyError: 'gone'"):
        await run(broken)
    with pytest.raises(InvalidInput, match="is of a replay of stream:orders into 'copies', with other settings"):
        await run(where="data.n > 1")
    assert await read(database, "copies") == []


def broken(rows: DataFrame) -> DataFrame:
    raise KeyError("gone")


async def test_functions_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace_steps_of_test.py").write_text("def step(rows):\n    return rows\n\nnumber = 1\n")
    (tmp_path / "headrace_broken_of_test.py").write_text("import nothing_of_that_name\n")
    assert load_function("headrace_steps_of_test.py:step") is load_function("headrace_steps_of_test:step")
    for target, error, sentence in (
        ("step", InvalidInput, "Write module:function"),
        ("nothing:step", NoFunction, "module 'nothing' does not exist"),
        ("nothing.py:step", NoFunction, "does not exist"),
        ("headrace_steps_of_test:stop", NoFunction, "has no function 'stop'"),
        ("headrace_steps_of_test:number", ConfigurationError, "must be a function"),
        ("headrace_broken_of_test:step", ConfigurationError, "ModuleNotFoundError: No module named"),
    ):
        with pytest.raises(error, match=sentence):
            load_function(target)


async def test_the_example_leaves_out_what_identifies_people(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    public = load_function(f"{EXAMPLES}/spark_replay.py:public")
    del sys.modules["spark_replay"]  # other tests run it, from other places
    order = [("orders.1", 1, '{"id": 1, "region": "eu", "total": "2.50", "email": "a@example.org"}')]
    (row,) = public(spark.createDataFrame(order, "key string, seq bigint, data string")).collect()
    assert row.data.asDict() == {"id": 1, "region": "eu", "total": Decimal("2.50")}
