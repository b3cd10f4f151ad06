"""`headrace spark run` with a user's program and with pipelines, as processes: what stops them, and
what they report.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import headrace_spark
from headrace import store
from headrace.cli.main import call
from headrace.model.errors import HeadraceError, UnknownStream
from headrace_spark.cli import stopping
from headrace_spark.cli.stopping import Stopped, until_stopped
from headrace_spark.lake.files import CantKeepFiles
from headrace_spark.pipelines.running import PipelineFailed, translate
from headrace_spark.session import SparkUnavailable
from tests.spark.filling import fill, read
from tests.spark.processes import PATIENCE, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = (sys.executable, "-m", "headrace.cli.main", "spark", "run")

PROGRAM = """
import os, sys
from pyspark.sql import functions as sql

def twice(spark, *arguments, database):
    rows = spark.read.format("headrace").options(database=database, stream="orders").load()
    made = rows.select("key", sql.lit(arguments[0]).alias("word"))
    made.write.format("headrace").mode("append").options(database=database, stream="copies").save()
    print("done", sys.argv[1:])

def copied(rows):
    return rows

def endless(spark):
    def work(parts):
        import time
        print("at work", file=sys.stderr, flush=True)
        for part in parts:
            time.sleep(600)
            yield part
    spark.range(1).mapInPandas(work, "id long").collect()

def failing(spark):
    raise RuntimeError("it was too much")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def here(place: Path, spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Run the command in this process, with the session of all tests, which it leaves unchanged."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    monkeypatch.setattr("headrace_spark.cli.stopping.stop", lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda *words: call(["spark", "run", *words])
    sys.modules.pop("program", None)


@pytest.mark.asyncio
async def test_a_function_is_called_with_the_session_the_database_and_its_arguments(
    here: Callable[..., int], database: store.Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(database, "orders", 3)
    await store.create_stream(database, "copies")
    assert here("program.py:twice", "--", "word", "--not-ours") == 0
    assert capsys.readouterr().out == "done ['word', '--not-ours']\n"
    assert [json.loads(data) for _, _, data in await read(database, "copies")] == [{"word": "word"}] * 3


@pytest.mark.asyncio
async def test_pipelines_report_what_they_did_or_why_not_in_a_sentence(
    here: Callable[..., int], database: store.Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(database, "orders", 3)
    await store.create_stream(database, "copies")
    assert here("archive", "--stream", "orders", "--path", "a", "--json", "--partitions", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["first"], report["last"], report["files"]) == (3, 1, 3, 1)
    replay = ("replay", "--into", "copies", "--checkpoint", "c", "--function", "program.py:copied")
    assert here(*replay, "--path", "a") == 0
    assert capsys.readouterr().out.startswith("replay: 3 rows into 'copies', in ")
    for words, code, sentence in (
        (("archive", "--stream", "nothing", "--path", "a"), 66, "headrace: The stream 'nothing' does not exist"),
        (("archive", "--stream", "orders", "--path", "program.py"), 73, "is a file"),
        ((*replay, "--stream", "orders"), 65, "is of a replay of file:"),
        (("backfill", "--table", "nothing", "--stream", "orders"), 66, "The table 'nothing' does not exist"),
        (("program.py:failing",), 1, "The program failed: RuntimeError: it was too much."),
    ):
        assert here(*words) == code
        assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the program runs in a thread
def test_a_program_may_end_processes_that_it_has_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "stop", lambda: None)

    def fork() -> int | None:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join(20)
        process.kill()
        return process.exitcode

    assert until_stopped(fork) == -signal.SIGTERM


def test_a_signal_ends_a_program_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(stopping, "stop", stopped.set)
    monkeypatch.setattr(stopping, "_stop_queries_and_jobs", waits.set)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        waits.wait()
        raise RuntimeError("its job was cancelled")

    previous = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught:
        until_stopped(work)
    assert caught.value.exit_code == 143
    assert stopped.is_set()
    assert signal.getsignal(signal.SIGTERM) is previous
    assert until_stopped(lambda: 7) == 7


@pytest.mark.long
def test_ctrl_c_stops_the_job_and_then_the_process(place: Path, dsn: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "program.py:endless"], cwd=place, env=environment(HEADRACE_DATABASE=dsn), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "at work" in line:
                break
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert out == ""
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(below, timeout=PATIENCE)
    assert alive == []


def test_what_cannot_be_run_is_reported_in_a_sentence_without_a_session(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    for words, code, sentence in (
        (("nothing",), 64, "The pipeline 'nothing' does not exist"),
        (("nothing.py",), 66, "The file 'nothing.py' does not exist"),
        (("nothing:f",), 66, "The module 'nothing' does not exist"),
        (("program.py:nothing",), 66, "has no function 'nothing'"),
        (("archive", "--path", "x"), 64, "--stream"),
    ):
        assert call(["spark", "run", *words]) == code
        assert sentence in capsys.readouterr().err
    sys.modules.pop("program", None)


def test_a_program_that_fails_is_reported_with_its_traceback(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(stopping, "stop", lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (place / "plain.py").write_text(
        "import sys\nif sys.argv[1:]:\n    sys.exit(3)\nraise RuntimeError('it was too much')\n"
    )
    assert call(["spark", "run", "plain.py"]) == 1
    errors = capsys.readouterr().err
    assert (
        errors.splitlines()[-1]
        == "headrace: The program failed: RuntimeError: it was too much. Its traceback is above."
    )
    assert 'plain.py", line 4' in errors
    with pytest.raises(SystemExit, match="3"):
        call(["spark", "run", "plain.py", "argument"])


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            "[X] failed.\nTraceback (most recent call last):\n  File a\nheadrace.model.errors.UnknownStream: There is no stream 'a'.\n\tat org.apache",
            UnknownStream,
            "There is no stream 'a'.",
        ),
        ("headrace_spark.lake.files.CantKeepFiles: It is a file.", CantKeepFiles, "It is a file."),
        ("Error while sending: Connection refused", SparkUnavailable, "The connection to Spark was lost"),
        ("Job aborted.\n: Traceback (most recent call last):\n  File a\n    x\nKeyError: 'gone'\n", PipelineFailed, "The pipeline failed: KeyError: 'gone'"),
        ("calling o1.save.\n: org.apache.spark.SparkException: no room\n\tat org.x", PipelineFailed, "The pipeline failed: no room"),
        ("[X] failed.\nTraceback (most recent call last):\n  File a\nAn error occurred while calling o1.parquet.\n: org.apache.x.Y: no room\n\tat org.x", PipelineFailed, "The pipeline failed: no room"),
        ("[CODE] plain", PipelineFailed, "The pipeline failed: [CODE] plain"),
    ],
)  # fmt: skip
def test_what_spark_raises_is_reported_in_one_sentence(text: str, kind: type[HeadraceError], sentence: str) -> None:
    from pyspark.errors import PySparkException

    translated = translate(PySparkException(text))
    assert type(translated) is kind
    assert str(translated).startswith(sentence)
    assert translate(ValueError(text)) is None, "that is not Spark's"


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "adbc_driver_manager", "adbc_driver_postgresql"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import headrace_spark
for name in sorted(headrace_spark._LAZY):
    try:
        getattr(headrace_spark, name)
    except headrace_spark.SparkUnavailable as error:
        print(name, error)
    else:
        print(name, "is there")
"""


def test_without_the_extra_each_name_is_there_or_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, env=environment()
    )
    output = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert output.keys() == headrace_spark._LAZY.keys()
    lacking = {name: text for name, text in output.items() if text != "is there"}
    assert {"backfill", "replay"} <= lacking.keys()
    assert all("are not installed" in text and "pip install 'headrace[spark]'" in text for text in lacking.values())
