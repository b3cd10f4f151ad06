"""Compares the executors of a cluster with this process at the start of a session, and says what does not fit."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from headrace.model.log import Log
from headrace_spark.session import probe
from headrace_spark.session.errors import SparkUnavailable
from headrace_spark.session.shipping import PACKAGES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

T = TypeVar("T")

log = Log("headrace.spark")

_WARN_AFTER = 30.0  # seconds
_INTERRUPTS, _INTERRUPT_PAUSE = 20, 0.25  # attempts, and seconds between them
_START_TIMEOUT = 60.0  # seconds that a Python on this machine has to describe itself
_TAG = "headrace-fitness"
_MOST_TASKS = 64  # more machines than that are taken to be like these

_PLANNER = (
    "Spark calls it on this machine as well, to plan reads and writes. Set python (HEADRACE_SPARK_PYTHON) to a path or a"
    " command that exists on all machines"
)
_BUSY = "Check whether the cluster has free executors and cores"
_SHIP = "Ship it (--ship headrace, or HEADRACE_SPARK_SHIP=headrace)"
MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


class Python(msgspec.Struct, frozen=True):
    """A Python that runs functions for a session. See `probe.describe`."""

    python: str
    executable: str
    tag: str
    headrace: str | None
    pyspark: str
    missing: tuple[str, ...]

    @property
    def minor(self) -> str:
        return _minor(self.python)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def here() -> Python:
    """This process."""
    return msgspec.convert(probe.describe(), Python)


def of_executors(spark: SparkSession, timeout: float) -> list[Python]:
    """Ask executors what they run. All that are running may be asked, or only some.

    Raises:
        SparkUnavailable: no executor answered within `timeout` seconds, or none can run Python.
    """

    tasks = _tasks(spark)

    def work() -> list[Python]:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(_by_value(), "found string").distinct().collect()
        return sorted((msgspec.json.decode(row.found, type=Python) for row in rows), key=lambda one: one.executable)

    hint = "The cluster has accepted the application, and provided no executor. Give it free cores and memory, or raise start_timeout (HEADRACE_SPARK_START_TIMEOUT)"
    return within(spark, work, timeout, hint)


def of_planner(python: str) -> Python:
    """The Python that plans reads and writes on this machine. It is called as that of the executors.

    Raises:
        SparkUnavailable: it does not exist here, or can't be run.
    """
    if shutil.which(python) is None:
        raise SparkUnavailable(f"The executors' Python, {python}, does not exist on this machine. {_PLANNER}.")
    try:
        return _described(python, os.environ)
    except SparkUnavailable as error:
        raise SparkUnavailable(f"The executors' Python, {python}, can't be run on this machine. {_PLANNER}.") from error


def _described(python: str, environment: Mapping[str, str]) -> Python:
    code = Path(probe.__file__).read_text(encoding="utf-8")
    try:
        ended = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT,
            check=True,
            env=environment,
        )
        return msgspec.json.decode(ended.stdout, type=Python)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise SparkUnavailable(f"The Python {python} can't be run on this machine.") from error


def planner_misfit(python: str, shipped: bool) -> str | None:
    """A sentence about the Python that plans reads and writes on this machine. None if it fits."""
    try:
        return misfit(of_planner(python), where="that plans here", shipped=shipped)
    except SparkUnavailable as error:
        return str(error)


def local_misfit(python: str, environment: Mapping[str, str]) -> str | None:
    """A sentence about another Python for the workers of a local session. None if it fits.

    Args:
        environment: the variables that they get.
    """
    right = "Leave python (HEADRACE_SPARK_PYTHON) out. Then local workers run the Python of this process"
    if shutil.which(python) is None:
        return f"The Python of local workers, {python}, does not exist. {right}."
    try:
        found = _described(python, environment)
    except SparkUnavailable as error:
        return f"{error} {right}."
    if found.minor != here().minor:
        return f"The Python of local workers, {python}, is {found.python}, and that of this process {here().python}. {right}."
    missing = ["headrace"] if found.headrace is None else [name for name in found.missing if name not in here().missing]
    if missing:
        return f"The Python of local workers, {python}, lacks {', '.join(missing)}. {right}, or install headrace[spark] there."
    return None


def misfit(found: Python, *, where: str, shipped: bool) -> str | None:
    """A sentence that says what does not fit, and what would be right. None if all fits.

    Args:
        found: the Python of an executor, or the one that plans on this machine.
        where: where it runs, such as "on an executor".
        shipped: whether code is shipped, so that nothing of Headrace needs to be there.
    """
    own = here()
    whose = f"The Python {where}, {found.executable},"
    if found.minor != own.minor:
        return (
            f"{whose} is {found.python}, and that of this process {own.python}. Set python (HEADRACE_SPARK_PYTHON) to a Python"
            f" {own.minor}, or run this with {found.minor}."
        )
    if "Connect" not in where and own.pyspark and found.pyspark and _minor(own.pyspark) != _minor(found.pyspark):
        return (
            f"{whose} has PySpark {found.pyspark}, and this process {own.pyspark}. Both must be the same. Install pyspark=={found.pyspark}"
            f" here, or run Spark {own.pyspark} there."
        )
    missing = [name for name in found.missing if name not in own.missing]
    if shipped:
        return _not_shipped(whose, missing, same_kind=found.tag == own.tag)
    return _not_installed(whose, missing, found.headrace, own.headrace)


def _not_shipped(whose: str, missing: list[str], *, same_kind: bool) -> str | None:
    lacking = [name for name in missing if not same_kind or name not in PACKAGES]
    if not lacking:
        return None
    names = " ".join(lacking).replace("_", "-")
    return f"{whose} lacks {', '.join(lacking)}. {'Spark needs it there' if same_kind else 'Compiled code is not shipped to another kind of machine'}. Run pip install {names} there."


def _not_installed(whose: str, missing: list[str], found: str | None, own: str | None) -> str | None:
    right = f"install headrace[spark]{f'=={own}' if own else ''} there"
    if found is None or missing:
        lacking = ", ".join(["headrace"] if found is None else missing)
        return f"{whose} lacks {lacking}. {_SHIP}, {right}, or set python (HEADRACE_SPARK_PYTHON) to one that has it."
    if found and own and found != own:
        return f"{whose} has headrace {found}, and this process {own}. {_SHIP}, or {right}."
    return None


def failed_start(text: str, where: str) -> str | None:
    """A sentence about Python workers that could not run a function at all, from Spark's message. None for another failure."""
    own = platform.python_version()
    minor = _minor(own)
    if missing := MISSING_MODULE.search(text):
        name = missing[1].partition(".")[0]
        if name in ("pyarrow", "pandas", "numpy"):
            return f"{where} Python lacks {name}, which Spark needs there. Install it, or set python to an interpreter that has it."
        if name in ("headrace", "headrace_spark", "msgspec", "adbc_driver_postgresql"):
            return f"{where} Python lacks {name}. {_SHIP}, install headrace[spark] there, or set python to an interpreter that has it."
        return (
            f"{where} Python lacks {name}. Ship it: --ship {name}, or HEADRACE_SPARK_SHIP={name}. Or install it there."
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"{where} Python is not {minor}, the version of this process. Set python to one that is."
    if not_runnable := re.search(r'Cannot run program "([^"]*)"', text):
        return f"{where} Python can't be run: {not_runnable[1]}. Set python to another one."
    return None


def reason_of(error: Exception, where: str) -> str:
    """Explain why a job of the check failed, in one sentence, and what to do."""
    text = str(error)
    return failed_start(text, where) or f"The job failed: {_line(text)}."


def _line(text: str) -> str:
    """The most informative line: the last Python error, or else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason is given"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (raised[-1:] or lines)[0].rstrip(".")


def within(spark: SparkSession, work: Callable[[], T], timeout: float, hint: str = _BUSY) -> T:
    """Run a Spark job in a thread, and interrupt it after `timeout` seconds. Raises `SparkUnavailable` with the hint, or the
    job's error."""
    ended: list[Any] = []

    def run() -> None:
        try:
            spark.addTag(_TAG)
            ended.append(work())
        except Exception as error:
            ended.append(error)
        finally:
            with contextlib.suppress(Exception):  # the session may be gone
                spark.removeTag(_TAG)

    thread = threading.Thread(target=run, name="headrace-spark-check", daemon=True)
    thread.start()
    thread.join(min(timeout, _WARN_AFTER))
    if thread.is_alive() and timeout > _WARN_AFTER:
        log.warning("waiting for executors", seconds=_WARN_AFTER, timeout=timeout)
        thread.join(timeout - _WARN_AFTER)
    if not ended:
        for _ in range(_INTERRUPTS):  # an interrupt does not reach a job that is only about to start
            spark.interruptTag(_TAG)
            thread.join(_INTERRUPT_PAUSE)
            if not thread.is_alive():
                break
        raise SparkUnavailable(f"The job was not done after {timeout:g} s. {hint}.")
    if isinstance(ended[0], Exception):
        raise ended[0]
    return cast(T, ended[0])


def _tasks(spark: SparkSession) -> int:
    """How many tasks to ask with, so that probably every machine that is ready gets one."""
    context = getattr(spark, "_sc", None)
    return 4 if context is None else max(2, min(2 * context.defaultParallelism, _MOST_TASKS))


def _by_value() -> Any:
    """The function that describes a worker, with its code, since a worker may lack this package."""
    code = Path(probe.__file__).read_text(encoding="utf-8")

    def described(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        import pyarrow as pa

        for batch in batches:
            if batch.num_rows:
                namespace: dict[str, Any] = {"__name__": "probe"}
                exec(compile(code, "probe", "exec"), namespace)
                yield pa.RecordBatch.from_pylist([{"found": json.dumps(namespace["describe"]())}])

    described.__module__ = "__main__"  # functions of this module are pickled with their code
    return described
