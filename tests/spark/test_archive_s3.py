"""An archive on an object store, through Hadoop's S3A: where a move is a copy and a deletion, each message is in it once all the
same, its tables and merges included, and secrets are nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace_spark.lake.files import ArrowFiles, CantKeepFiles
from tests.spark.lake.program import CUTS, LAKE, run
from tests.spark.lake.store import KEY, SECRET, Store, running_store
from tests.spark.test_cluster_secrets import leaks
from tests.spark.written import Written


@pytest.fixture
def lake() -> Iterator[Store]:
    """An object store of this test's own."""
    with running_store() as store:
        yield store


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["between the copy and the deletion of a move"], marks=pytest.mark.long),
        pytest.param(list(CUTS), marks=pytest.mark.torture),
    ],
    ids=["one cut", "every cut"],
)
def test_a_run_that_is_cut_off_at_a_request_lists_no_row_twice_and_the_next_one_completes_it(
    names: list[str], lake: Store, dsn: str, tmp_path: Path
) -> None:
    written = Written(dsn)
    written.create("orders")
    written.create("copies")
    found, said = run(lake, "cuts", tmp_path, dsn, *names)
    print(said)
    for number, name in enumerate(names, 1):
        left = found[name]["left"]
        assert len(left) == len(set(left)), f"{name}: a row is listed twice"
        assert found[name]["listed"] == list(range(1, 30 * number + 1)), name
    everything = list(range(1, 30 * len(names) + 11))
    assert found["history"] == found["delta"] == found["iceberg"] == found["merged"] == everything
    assert found["merges"] == [2, 2], "each day was merged, and then shown"
    assert found["replayed"] == found["parquet"] == len(everything)
    assert sorted(written.messages("copies")) == sorted(written.messages("orders"))


@pytest.mark.long
def test_files_are_made_and_moved_without_a_jvm_too(lake: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over Spark Connect, where the path has Hadoop's name of the scheme."""
    for name, value in lake.credentials.items():
        monkeypatch.setenv(name, value)
    files = ArrowFiles(LAKE)
    assert files.root == LAKE
    assert files.names("a") == files.below("a") == []
    assert files.read("a/b.json") is None
    assert files.create("a/b.json", b"one")
    assert not files.create("a/b.json", b"two")
    files.move("a/b.json", "c/d/e.json")
    files.move("a/b.json", "c/d/e.json")  # it has gone, so nothing happens
    assert (files.below("c"), files.read("c/d/e.json")) == (["d/e.json"], b"one")
    table = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"seq": [1, 2, 3]}), table)
    assert files.create("a/f.parquet", table.getvalue().to_pybytes())
    with lake.cut("COPY", "/orders/c/f.parquet$", after=True), pytest.raises(CantKeepFiles, match="s3a://lake/orders"):
        files.move("a/f.parquet", "c/f.parquet")
    assert files.rows("c/f.parquet") == 3
    files.move("a/f.parquet", "c/f.parquet")
    assert ("f.parquet" in files.names("a"), files.rows("c/f.parquet")) == (False, 3)
    files.remove("c")
    files.remove("c")
    assert files.names("c") == []


@pytest.mark.torture
def test_keys_of_the_store_are_nowhere(lake: Store, dsn: str, tmp_path: Path) -> None:
    """They are in the environment and in the configuration, everything is logged, and runs fail in several ways."""
    (tmp_path / "events").mkdir()
    Written(dsn).create("orders")
    _, said = run(
        lake, "confide", tmp_path, dsn, str(tmp_path),
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (tmp_path / "events").as_uri(),
            "spark.hadoop.fs.s3a.access.key": KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "spark.log.level": "INFO",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        },
    )  # fmt: skip
    (tmp_path / "errors").write_text(said)
    events = b"".join(path.read_bytes() for path in (tmp_path / "events").rglob("events_*"))
    assert b"fs.s3a.secret.key" in events, "the configuration is in the log of events"
    assert b"nosuch-bucket" in (tmp_path / "errors").read_bytes()
    assert leaks(SECRET, tmp_path) == []
