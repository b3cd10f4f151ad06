"""The configuration that Spark is started with, and the environment of its processes."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from pathlib import Path

from headrace_spark.session.java import Java
from headrace_spark.session.settings import APP_NAME, Resolved, is_local

SECRET = re.compile(r"secret|password|token|access[.]?key|credential|database|dsn", re.IGNORECASE)
"""A pattern of configuration keys with secret values."""

# The user and the password of a URL, or the password of pairs of a name and a value, as plans and logs show it. Spark masks
# each plan. Look-behinds are of a fixed length, since Java tries the others at each
# character: a filter with 20,000 values then took four times as long to plan.
_PASSWORD = r"""(?<=://)[^\s:/@]{0,200}:[^\s/@]+(?=@)|(?<=password=)('[^']*'|[^\s&'",)]+)"""
# Not spark.sql.python.filterPushdown.enabled. Spark 4.3.0 plans the reading of a DataFrame once. If
# the DataFrame is used again, it is read with the filters that its first use had pushed down, so
# rows are missing.
_SESSION = {"spark.sql.session.timeZone": "UTC"}
_SHARED = {
    **_SESSION,
    "spark.log.level": "ERROR",
    "spark.redaction.regex": f"(?i){SECRET.pattern}",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.redaction.options.regex": f"(?i)url|{SECRET.pattern}",
    "spark.sql.redaction.string.regex": _PASSWORD,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# With a master of this process, Spark 4.3.0 assigns no GPUs or other resources, and a task that requests one never starts.
_RESOURCE = re.compile(r"spark\.(executor|task)\.resource\.")


def configuration(resolved: Resolved) -> dict[str, str]:
    """Spark's configuration for a master: the settings, and our defaults where there is no setting.

    The installation's own `spark-defaults.conf` takes precedence over our defaults. A session in this process gets no requests
    for GPUs and other resources, so the settings for a cluster suit it, too.
    """
    defaults = _SHARED | (_local_defaults(resolved.master) if resolved.local else {})
    installed = _installed_keys()
    conf = {key: value for key, value in defaults.items() if key not in installed} | resolved.settings.conf
    if is_local(resolved.master):
        conf = {key: value for key, value in conf.items() if not _RESOURCE.match(key)}
    conf["spark.app.name"] = resolved.settings.app_name or APP_NAME
    if "PYSPARK_GATEWAY_PORT" not in os.environ or resolved.settings.master:  # spark-submit has set a master
        conf["spark.master"] = resolved.master
    return conf


def connect_configuration(resolved: Resolved) -> dict[str, str]:
    """The configuration for a session of a Connect server: only the settings that belong to a session.

    The rest, such as memory, was configured when the server was started.
    """
    return _SESSION | {key: value for key, value in resolved.settings.conf.items() if key.startswith("spark.sql.")}


def cores(master: str) -> int:
    """The number of threads of a local master."""
    found = re.match(r"local\[(\d+)", master)
    if found is not None:
        return int(found[1])
    if not master.startswith("local["):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_scratch: dict[int, Path] = {}


def scratch() -> Path:
    """The directory of tables that are saved without a path, and of code that is shipped.

    No other user can have made it. It is deleted when the session is stopped, or the process ends.
    """
    own = os.getpid()  # a fork has another one
    if own not in _scratch:
        _scratch[own] = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    return _scratch[own]


@atexit.register
def remove_scratch() -> None:
    """Delete that directory, if there is one."""
    if (own := _scratch.pop(os.getpid(), None)) is not None:
        shutil.rmtree(own, ignore_errors=True)


def _local_defaults(master: str) -> dict[str, str]:
    return {
        # The machine's name may not resolve, and its address may change while it sleeps.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Spark's default of 200 is for a cluster. Here it would make 200 tasks of a few rows.
        "spark.sql.shuffle.partitions": str(max(2, cores(master))),
        "spark.sql.warehouse.dir": (scratch() / "warehouse").as_uri(),
    }


def _installed_keys() -> set[str]:
    """The keys set in `spark-defaults.conf`."""
    places = (os.environ.get("SPARK_CONF_DIR"), (home := os.environ.get("SPARK_HOME")) and os.path.join(home, "conf"))
    directory = next(filter(None, places), None)
    try:
        text = (Path(directory or os.devnull) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return set()
    return {re.split(r"[\s=]", line.strip(), maxsplit=1)[0] for line in text.splitlines() if line.strip()[:1] != "#"}


def environment(resolved: Resolved, java: Java | None) -> dict[str, str]:
    """The environment variables of Spark's processes.

    Workers on this machine run the Python of this process, and import what it can import. Workers
    of a cluster run the Python of the setting `python`, or the cluster's own.
    """
    python = resolved.settings.python or (sys.executable if resolved.local else os.environ.get("PYSPARK_PYTHON"))
    found = {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": _home()}
    if python:
        found["PYSPARK_PYTHON"] = python
    if java is not None:
        found["JAVA_HOME"] = str(java.home)
    if resolved.local:
        found["PYTHONPATH"] = os.pathsep.join(_import_path())
    return found


def _home() -> str:
    """The installation directory of Spark.

    Spark's own scripts would find it by running a Python, which fails if the path of that Python
    has a space.
    """
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def _import_path() -> list[str]:
    """The entries of `sys.path` that a new interpreter would lack. Entries from the environment are included."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {*site.getsitepackages(), site.getusersitepackages()}
    own |= {os.path.join(place, "lib-dynload") for place in own}
    places = [os.path.abspath(place) for place in sys.path]
    return [place for place in dict.fromkeys(places) if place not in own and os.path.exists(place)]
