"""The documentation page about Spark. Its commands and programs run unchanged and in order, and so does
its example from a table to a query.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from headrace_spark import spark_consumer
from headrace_spark.cli import stopping
from headrace_spark.session import sessions
from headrace_spark.source.names import READING
from headrace_spark.source.writer import WRITING
from tests.cli.conftest import Headrace, commands, headrace
from tests.cli.processes import PATIENCE, Commands
from tests.runtime.running import running, work_off
from tests.support import servers
from tests.support.captures import drop_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["commands", "headrace"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?<!-->\n)^```(sql|sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A block that is run. One that is not has a comment above it, which says why."""

CUSTOMERS = """
    create table customers (id bigint primary key, name text);
    insert into customers values (1, 'ann'), (2, 'ben');
"""
"""The table that the page's backfill reads."""


def run(text: str, namespace: dict[str, Any]) -> None:
    """Run a program unchanged, but without the `__future__` imports of this module."""
    exec(compile(text, "docs/spark.md", "exec", dont_inherit=True), namespace)


class Reader:
    """A reader that follows the page line by line, in a separate directory."""

    def __init__(self, headrace: Headrace, commands: Commands, dsn: str, directory: Path) -> None:
        self.headrace, self.commands, self.dsn, self.directory = headrace, commands, dsn, directory
        self.programs: dict[str, str] = {}
        self.namespace: dict[str, Any] = {"__name__": "__main__"}  # Spark's workers know no module of that name
        self.lines = 0
        self.server: Any = None

    def read(self, page: str) -> None:
        for _, block in BLOCK.findall(page):
            if block.startswith("# service.py"):
                self.programs["service"] = self.programs.get("service", "") + block
        for language, block in BLOCK.findall(page):
            if language == "sql":
                self.sql(block)
            elif language == "sh":
                for line in block.splitlines():
                    self.shell(shlex.split(line, comments=True))
            elif not block.startswith("# "):  # others are in files
                self.python(block)

    def sql(self, text: str) -> Any:
        async def execute() -> Any:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await (connection.fetchval if text.startswith("select") else connection.execute)(text)
            finally:
                await connection.close()

        return servers.run(execute())

    def shell(self, words: list[str]) -> str:
        self.lines += 1
        match words:
            case ["pip", "install", *_]:
                return ""
            case ["headrace", "run", "service:app"]:
                asyncio.run(self.work_off())
                return ""
            case ["headrace", "serve"]:
                self.server = self.commands("serve", "--port", "0")
                self.server.line("listening")
                return ""
            case ["headrace", *rest]:
                if "archive" in rest and "sales" in rest:
                    self.until_captured(3)
                if "--" in rest:  # the session's Java was started in another directory
                    rest[-1] = str(self.directory / rest[-1])
                ended = self.headrace(*rest)
                assert ended.code == 0, (words, ended)
                return ended.out
        assert words[0] == "python", words
        return subprocess.run(
            [sys.executable, *words[1:]], cwd=self.directory, check=True, capture_output=True, text=True
        ).stdout

    async def work_off(self) -> None:
        program: dict[str, Any] = {"__name__": "__main__"}
        run(self.programs["service"], program)
        async with running(program["app"], within=PATIENCE * 4):
            await program["app"].idle()

    def python(self, block: str) -> None:
        block = block.replace("postgresql://localhost/shop", self.dsn).replace("/var/lib/shop", str(self.directory))
        run(block, self.namespace)

    def until_captured(self, count: int) -> None:
        end = time.monotonic() + PATIENCE
        while self.sql("select count(*) from headrace_streams.sales") < count:  # each query takes its time
            assert time.monotonic() < end, self.server.lines


@pytest.fixture
def reader(
    spark: SparkSession,
    headrace: Headrace,
    commands: Commands,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    # The page uses the session of all tests. Every request for a session by the settings returns it, and
    # it stays.
    assert sessions._current is not None
    assert sessions._current.resolved is not None
    made = sessions._current.resolved.settings
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", str(made.master))
    monkeypatch.setenv("HEADRACE_SPARK_APP_NAME", str(made.app_name))
    monkeypatch.setenv("HEADRACE_SPARK_CONF", ",".join(f"{key}={value}" for key, value in made.conf.items()))
    for module in (sessions, stopping):
        monkeypatch.setattr(module, "stop", lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    reader = Reader(headrace, commands, dsn, tmp_path)
    reader.sql(CUSTOMERS)
    yield reader
    servers.run(drop_slots(dsn))


@pytest.mark.torture
def test_every_line_of_the_page_works(reader: Reader) -> None:
    reader.read(PAGE)
    assert reader.lines > 20

    def messages(stream: str) -> dict[str, Any]:
        text = reader.sql(f"""select json_object_agg(key, data order by seq)::text from headrace_streams."{stream}\"""")
        found: dict[str, Any] = json.loads(text)
        return found

    def sums(stream: str, key: str, value: str) -> dict[str, str]:
        """Return the sums over all batches, however many there were."""
        found = f"""select data ->> '{key}' as key, sum((data ->> '{value}')::numeric)::text as sum from headrace_streams."{stream}" group by 1"""
        text = reader.sql(f"select json_object_agg(key, sum)::text from ({found}) as sums")
        made: dict[str, str] = json.loads(text)
        return made

    assert sums("totals", "region", "orders") == {"eu": "2", "us": "1"}
    assert {region: float(total) for region, total in sums("totals", "region", "total").items()} == {
        "eu": 100.9,
        "us": 5,
    }
    assert messages("running")["orders.eu.3"] == {"seq": 3, "total": "80.00"}
    assert reader.namespace["query"].exception() is None
    assert messages("paid").keys() == {"orders.eu.1", "orders.eu.3", "orders.eu.4"}
    # The counts are of all orders, although the same DataFrame was used with a filter before.
    assert messages("regions") == {"regions.eu": {"count": 3}, "regions.us": {"count": 1}}
    assert messages("orders-public")["orders.us.2"] == {"id": 2, "region": "us", "total": "5.00"}
    assert messages("customers")["public.customers.2"]["record"] == {"id": 2, "name": "ben"}
    assert {data["region"]: data["orders"] for data in messages("hourly").values()} == {"eu": 4, "us": 1}

    # A table, its changes in Parquet, and a query of them. On the page it follows the changes.
    reader.until_captured(5)
    lines = re.findall(r"^(?:headrace|python) .*archive/sales.*$", PAGE, re.MULTILINE)
    archiving, asking, without = [shlex.split(line, comments=True) for line in lines]
    assert json.loads(reader.shell([*archiving, "--json"]))["rows"] == 2
    (shown,) = re.findall(r"^```\n(\+-.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown in reader.shell(asking)
    assert reader.shell(without) == "eu 20.90\nus 5.00\n"
    assert reader.headrace("consumer", "info", "sales", "archive").code == 0

    reader.server.send(signal.SIGTERM)
    assert reader.server.end() == 0, reader.server.lines


def rows_of(heading: str) -> dict[str, str]:
    """Return the rows of a section's table, by first column."""
    section = PAGE.partition(f"# {heading}\n")[2]
    found: dict[str, str] = {}
    for line in section.partition("\n#")[0].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.findall(r"`(\w+)`", cells[0]) if cells else ():
            found[name] = cells[1]
    return found


def test_the_page_names_every_option_of_the_data_source() -> None:
    assert sorted(rows_of("Reading a stream")) == sorted(READING)
    assert sorted(rows_of("Writing a stream")) == sorted(WRITING)


def test_the_page_names_every_setting_of_a_handler() -> None:
    import inspect

    documented = rows_of("Settings")
    given = inspect.signature(spark_consumer).parameters
    also = re.findall(r"`(\w+)`", PAGE.partition("`name`, `filter`")[2].partition("@app.consumer")[0])
    assert {*documented, "name", "filter", *also} == given.keys() - {"app", "stream"}
    for name in ("max_rows", "max_wait", "max_deliver", "ack_wait", "on_batch_error", "log_every"):
        default = given[name].default
        assert documented[name] == (f'`"{default}"`' if isinstance(default, str) else f"{default:,}"), name


def test_the_page_shows_examples_as_they_are() -> None:
    shown = re.findall(r"```python\n# (examples/\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for name, code in shown:
        assert code in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_page_names_every_example() -> None:
    for example in sorted((ROOT / "examples").glob("spark*")):
        assert f"examples/{example.name}" in PAGE, example.name


def test_every_link_of_the_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", PAGE)
    assert links
    for name, place in links:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8") if name else PAGE
        if place:
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert place in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, place


README = """
from datetime import datetime
from msgspec import Struct
from pyspark.sql import DataFrame, functions as sql
from headrace import App, Batch

class Event(Struct):
    at: datetime

app = App(DSN, streams=["events"])
"""
"""The parts that the README leaves out."""


@pytest.mark.asyncio
async def test_the_handler_of_the_readme_makes_sessions_of_events(spark: SparkSession, dsn: str) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On Spark\n")[2].partition("\n## ")[0]
    handler, reading = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program: dict[str, Any] = {"__name__": "__main__", "DSN": dsn}
    run(README + handler.replace("max_rows=100_000", "max_rows=100_000, max_wait='0.1s'"), program)
    app = program["app"]
    events = [("ann", "10:00"), ("ann", "10:20"), ("ben", "10:00"), ("ann", "11:00")]
    messages = [(key, {"at": f"2030-01-01T{at}:00Z"}) for key, at in events]
    await work_off(app, *messages, stream="events")
    async with app:
        rows = await app.database.fetch(
            "select key, sum((data ->> 'events')::int) from headrace_streams.sessions group by 1 order by 1"
        )
    assert [tuple(row) for row in rows] == [("ann", 3), ("ben", 1)]
    run(reading.replace("options(", "options(database=DSN, "), program | {"spark": spark})
