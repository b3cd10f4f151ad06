"""Settings of the process's Spark session.

The rule is that of all settings: an argument counts before the environment, that before `[tool.headrace.spark]` of the nearest
pyproject.toml, and that before the default. Spark's own configuration is put together key by key by the same rule.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace_spark.session.errors import SparkMisconfigured

MASTER = "local[*]"
APP_NAME = "headrace"

_TEXTS = ("master", "remote", "app_name", "python")
_NAMES = (*_TEXTS, "conf")
_TABLE = "[tool.headrace.spark]"
# What has a setting of its own; given as configuration, too, it would be anybody's guess which counts.
_OWN = {"spark.master": "master", "spark.remote": "remote", "spark.app.name": "app_name"}
_LOCAL = re.compile(r"local(-cluster)?\[[^\]]*\]|local")
_LOCAL_RIGHT = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_CLUSTER = re.compile(
    r"yarn|spark://[^/\s,:]+:\d+(,[^/\s,:]+:\d+)*|k8s://\S+|(?!spark:|k8s:|sc:|local)[a-z][\w+.-]*://\S+"
)
_REMOTE = re.compile(r"sc://[^/\s]+(/.*)?")
# A comma separates pairs where the next one begins; elsewhere it belongs to a value, such as a list of jars.
_BETWEEN_PAIRS = re.compile(r",(?=\s*spark\.[^=,\s]+=)")


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the process's Spark session is made. None, or nothing in `conf`, leaves it to the environment and to pyproject.toml.

    Attributes:
        master: a master URL: `local[4]`, `spark://host:7077`, `yarn`, `k8s://https://host:6443`. By default `local[*]`, all cores of
            this machine.
        remote: a Spark Connect server, such as `sc://host:15002`; instead of a master.
        app_name: the name that Spark shows for it.
        conf: Spark's own configuration, such as `{"spark.driver.memory": "4g"}`.
        python: the Python of the executors of a cluster, a path or a command there. Workers of a local master run the Python that
            runs this process, unless it is given.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str | None = None
    conf: dict[str, str] = {}
    python: str | None = None


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that count, and the place of each: an argument, a variable, a table in a file, or the default."""

    settings: SparkSettings
    places: dict[str, str]

    @property
    def master(self) -> str:
        """The master; not to be asked for where a Connect server is set."""
        return self.settings.master or MASTER

    @property
    def local(self) -> bool:
        """Whether the workers run on this machine, as children of this process."""
        return self.settings.remote is None and _LOCAL.fullmatch(self.master) is not None


def read(
    given: SparkSettings | None = None, *, environment: Mapping[str, str] = os.environ, directory: Path | None = None
) -> Resolved:
    """The settings that count.

    Args:
        given: what code says.
        environment: the variables HEADRACE_SPARK_MASTER, _REMOTE, _APP_NAME, _PYTHON and _CONF (`key=value,key=value`).
        directory: where to look for pyproject.toml, and above it; None for the working directory.

    Raises:
        SparkMisconfigured: a value that can't be, or a key in the table that is none.
    """
    found: dict[str, str] = {}
    conf: dict[str, str] = {}
    places: dict[str, str] = {}
    for place, level in _levels(given, environment, directory or Path.cwd()):
        _check(level, place)
        for name in _TEXTS:
            # Where to run is one question, with two ways to answer it: who answers it one way has answered the other.
            answered = ("master", "remote") if name in ("master", "remote") else (name,)
            if level.get(name) and not any(other in found and places[other] != place for other in answered):
                found[name], places[name] = level[name], place
        for key, value in level.get("conf", {}).items():
            if key not in conf:
                conf[key], places[f"conf.{key}"] = value, place
    return Resolved(settings=SparkSettings(**found, conf=conf), places=places)


def _levels(
    given: SparkSettings | None, environment: Mapping[str, str], directory: Path
) -> list[tuple[str, dict[str, Any]]]:
    """What each place says, the one that counts most first. The place of a variable is its prefix."""
    variables: dict[str, Any] = {name: environment.get(f"HEADRACE_SPARK_{name.upper()}") for name in _NAMES}
    variables["conf"] = _pairs(variables["conf"] or "")
    return [
        ("an argument", msgspec.structs.asdict(given) if given else {}),
        ("the environment (HEADRACE_SPARK_…)", {name: value for name, value in variables.items() if value}),
        *_file(directory),
    ]


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for pair in filter(None, map(str.strip, _BETWEEN_PAIRS.split(text.rstrip(", ")))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SparkMisconfigured(
                f"HEADRACE_SPARK_CONF has {pair!r} in it, and must be pairs such as spark.driver.memory=4g, with commas between them."
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _file(directory: Path) -> list[tuple[str, dict[str, Any]]]:
    """What the nearest pyproject.toml says. What is wrong with the file as such, the settings of Headrace tell."""
    file = next((one for place in (directory, *directory.parents) if (one := place / "pyproject.toml").is_file()), None)
    if file is None:
        return []
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("headrace", {}).get("spark", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as error:
        raise SparkMisconfigured(f"{file} can't be read, where {_TABLE} may be: {error}.") from error
    place = f"{_TABLE} of {file}"
    if not isinstance(table, dict):
        raise SparkMisconfigured(f"tool.headrace.spark in {file} must be a table: {_TABLE}.")
    conf = table.get("conf", {})
    # `spark.driver.memory = "4g"` is a table in a table to TOML, unless the key is quoted. Both are understood.
    return [(place, {**table, "conf": _flat(conf) if isinstance(conf, dict) else conf})]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            flat[prefix + key] = str(value).lower()
        else:
            flat[prefix + key] = str(value) if isinstance(value, int | float) else value
    return flat


def _check(level: Mapping[str, Any], place: str) -> None:
    for name, value in level.items():
        if name not in _NAMES:
            raise SparkMisconfigured(f"There is no Spark setting {name!r} for {place}: there are {', '.join(_NAMES)}.")
        if name in _TEXTS and value is not None and not isinstance(value, str):
            raise SparkMisconfigured(f"The Spark setting {name!r} is {value!r} in {place}, and must be a text.")
    if level.get("master") and level.get("remote"):
        raise SparkMisconfigured(
            f"Both a Spark master and a Connect server are set by {place}: leave out 'master' or 'remote'."
        )
    if level.get("master"):
        check_master(level["master"])
    if level.get("remote") and not _REMOTE.fullmatch(level["remote"]):
        raise SparkMisconfigured(
            f"The Spark Connect server {without_token(level['remote'])!r} must be written as sc://host:15002."
        )
    _check_conf(level.get("conf", {}), place)


def _check_conf(conf: Any, place: str) -> None:
    if not isinstance(conf, dict):
        raise SparkMisconfigured(
            f"The Spark setting 'conf' is {conf!r} in {place}, and must be a table of keys and values."
        )
    for key, value in conf.items():
        if key in _OWN:
            raise SparkMisconfigured(f"The Spark setting {_OWN[key]!r} is the place for {key}, and not 'conf'.")
        if not key.startswith("spark."):
            raise SparkMisconfigured(
                f"{key!r} in the Spark setting 'conf' is no key of Spark's: they begin with spark."
            )
        if not isinstance(value, str):
            raise SparkMisconfigured(f"{key} in the Spark setting 'conf' is {value!r} in {place}, and must be a text.")


def check_master(master: str) -> None:
    """Check how a master is written. Raises `SparkMisconfigured`."""
    if not (_LOCAL_RIGHT.fullmatch(master) or _CLUSTER.fullmatch(master)):
        other = " For a Connect server there is the setting 'remote'." if master.startswith("sc:") else ""
        raise SparkMisconfigured(
            f"The Spark master {master!r} is none: write local[*], local[4], spark://host:7077, yarn or k8s://https://host:6443.{other}"
        )


def without_token(remote: str) -> str:
    """A Connect server's URL as it may be shown: what follows the first semicolon may be a token."""
    url, semicolon, _ = remote.partition(";")
    return url + (";…" if semicolon else "")
