"""The process with the warm Spark session: `python -m benchmarks.suite.spark_worker CONF MASTER`. See `spark_crew`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, BinaryIO

import msgspec

from benchmarks import checks
from benchmarks.checks import CheckFailed
from benchmarks.suite.spark_crew import Done, Failed, Ready, Work


def main() -> int:
    # Java and other code may print to the standard output, so results go to a duplicate of it.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        conf = msgspec.json.decode(sys.argv[1], type=dict[str, str])
        try:
            return _serve(out, conf, sys.argv[2])
        except CheckFailed as wrong:
            _send(out, Failed(str(wrong)))
            return 1


def _serve(out: BinaryIO, conf: dict[str, str], master: str) -> int:
    from headrace_spark import SparkSettings, SparkUnavailable, session, stop

    start = time.monotonic()
    try:
        # Executors of a cluster get Headrace's code, as they do in production.
        local = master.startswith("local")
        python, ship = (None, ()) if local else (sys.executable, ("headrace",))
        spark = session(
            SparkSettings(master=master, app_name="headrace benchmarks", conf=conf, python=python, ship=ship)
        )
    except SparkUnavailable as error:
        raise CheckFailed(str(error)) from error
    try:
        jvm: Any = spark.sparkContext._jvm
        java = int(jvm.java.lang.ProcessHandle.current().pid())
        versions = {"spark": spark.version, "java": str(jvm.java.lang.System.getProperty("java.version"))}
        _send(out, Ready(java, time.monotonic() - start, versions))
        from benchmarks.suite.spark_jobs import JOBS

        decoder = msgspec.json.Decoder(Work)
        for line in sys.stdin.buffer:
            work = decoder.decode(line)
            with checks.plain():
                _send(out, JOBS[work.job](spark, work))
        return 0
    finally:
        stop()


def _send(out: BinaryIO, message: Ready | Done | Failed) -> None:
    out.write(msgspec.json.encode(message) + b"\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
