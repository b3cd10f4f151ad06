"""`headrace spark run`: a user's program and the pipelines, as processes; what stops them, and what is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace import store
from headrace.cli.main import call
from tests.spark.filling import fill, read
from tests.spark.processes import PATIENCE, surroundings

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


def run(place: Path, *words: str, dsn: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=place, env=surroundings(HEADRACE_DATABASE=dsn), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.mark.asyncio
async def test_a_function_is_called_with_the_session_the_database_and_its_arguments(
    place: Path, dsn: str, database: store.Database
) -> None:
    await fill(database, "orders", 3)
    await store.create_stream(database, "copies")
    done = run(place, "program.py:twice", "--", "word", "--not-ours", dsn=dsn)
    assert (done.returncode, done.stdout) == (0, "done ['word', '--not-ours']\n"), done.stderr
    assert [json.loads(data) for _, _, data in await read(database, "copies")] == [{"word": "word"}] * 3


@pytest.mark.asyncio
async def test_a_pipeline_tells_what_it_did(place: Path, dsn: str, database: store.Database) -> None:
    await fill(database, "orders", 3)
    done = run(place, "archive", "--stream", "orders", "--path", "a", "--json", "--log-level", "error", dsn=dsn)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["first"], report["last"], report["files"]) == (3, 1, 3, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_and_then_the_process(number: signal.Signals, place: Path, dsn: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "program.py:endless"], cwd=place, env=surroundings(HEADRACE_DATABASE=dsn), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "at work" in line:
                break
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, errors
    assert out == ""
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(below, timeout=PATIENCE)
    assert alive == []


def test_what_cannot_be_run_is_told_in_a_sentence_without_a_session(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for words, code, sentence in (
        (("nothing",), 64, "'nothing' is no pipeline"),
        (("nothing.py",), 66, "There is no file 'nothing.py'"),
        (("nothing:f",), 66, "There is no module 'nothing'"),
        (("program.py:nothing",), 66, "has no function 'nothing'"),
        (("archive", "--path", "x"), 64, "--stream"),
    ):
        assert call(["spark", "run", *words]) == code
        assert sentence in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "program", raising=False)


def test_a_program_that_fails_is_told_with_its_traceback(place: Path, dsn: str) -> None:
    (place / "plain.py").write_text("raise RuntimeError('it was too much')\n")
    done = run(place, "plain.py", dsn=dsn)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "headrace: The program failed: RuntimeError: it was too much. Its traceback is above."
    )
    assert 'plain.py", line 1' in done.stderr
