"""Settings of the process's Spark session.

The precedence is that of all settings: first an argument, then the environment, then
`[tool.headrace.spark]` of the nearest pyproject.toml, then the default. Spark's own configuration
is merged key by key in the same order.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.embedded.project_file import nearest_project
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace_spark.session.errors import SparkMisconfigured

MASTER = "local[*]"
APP_NAME = "headrace"
START_TIMEOUT = 300.0  # seconds. Clouds start machines for an application

_TEXTS = ("master", "remote", "app_name", "python")
_NAMES = (*_TEXTS, "ship", "start_timeout", "conf")
_TABLE = "[tool.headrace.spark]"
# Keys that have their own setting. As configuration they are refused, since it would be
# unclear which value wins.
_SETTING_OF_KEY = {"spark.master": "master", "spark.remote": "remote", "spark.app.name": "app_name"}
_LOCAL = re.compile(r"local\[[^\]]*\]|local")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[[^\]]*\]")
_VALID_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_CLUSTER = re.compile(
    r"yarn|spark://[^/\s,:]+:\d+(,[^/\s,:]+:\d+)*|k8s://\S+|(?!spark:|k8s:|sc:|local)[a-z][\w+.-]*://\S+"
)
_REMOTE = re.compile(r"sc://[^/\s]+(/.*)?")
# A comma separates pairs where the next pair begins. Elsewhere it belongs to a value, such as a
# list of jars.
_PAIR_SEPARATOR = re.compile(r",(?=\s*spark\.[^=,\s]+=)")


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the process's Spark session.

    A value of None, or a key that `conf` lacks, is taken from the environment or pyproject.toml.

    Attributes:
        master: a master URL: `local[4]`, `spark://host:7077`, `yarn`, `k8s://https://host:6443`.
            The default is `local[*]`, all cores of this machine.
        remote: a Spark Connect server, such as `sc://host:15002`, instead of a master.
        app_name: the application name in Spark.
        conf: Spark's own configuration, such as `{"spark.driver.memory": "4g"}`.
        python: the Python of a cluster's executors, a path or a command there and on this machine.
            By default workers of a local master run the Python of this process.
        ship: modules and packages that are sent to a cluster's executors, by their names or as
            paths, and Headrace's own code with them. Workers of a local master need none, since
            they import what this process can import.
        start_timeout: how long a cluster may take to accept the application and to provide an
            executor, or a Connect server to answer, in seconds or as text such as "10m". The default
            is 5 minutes.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str | None = None
    conf: dict[str, str] = {}
    python: str | None = None
    ship: tuple[str, ...] = ()
    start_timeout: Duration | None = None


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings, and the origin of each: an argument, a variable, a table in a file, or the default."""

    settings: SparkSettings
    places: dict[str, str]

    @property
    def master(self) -> str:
        """The master. Don't use it if a Connect server is set."""
        return self.settings.master or MASTER

    @property
    def start_timeout(self) -> float:
        """The limit of a start in seconds."""
        given = self.settings.start_timeout
        return START_TIMEOUT if given is None else seconds(given, "start_timeout")

    @property
    def local(self) -> bool:
        """Whether the workers run on this machine, and import what this process can import.

        Those of a `local-cluster` do if nothing is shipped to them.
        """
        if self.settings.remote is not None:
            return False
        return is_local(self.master) or (_LOCAL_CLUSTER.fullmatch(self.master) is not None and not self.settings.ship)


def read(
    given: SparkSettings | None = None, *, environment: Mapping[str, str] = os.environ, directory: Path | None = None
) -> Resolved:
    """Read the effective settings.

    Args:
        given: settings from code.
        environment: the variables HEADRACE_SPARK_MASTER, _REMOTE, _APP_NAME, _PYTHON, _SHIP (names
            and paths, separated by commas), _START_TIMEOUT and _CONF (`key=value,key=value`).
        directory: where to look for pyproject.toml, upwards. None for the working directory.

    Raises:
        SparkMisconfigured: a value is invalid, or a key in the table does not exist.
    """
    found: dict[str, str] = {}
    ship: tuple[str, ...] = ()
    start_timeout: float | None = None
    conf: dict[str, str] = {}
    places: dict[str, str] = {}
    for place, level in _levels(given, environment, directory or Path.cwd()):
        _check(level, place)
        for name in _TEXTS:
            # `master` and `remote` answer the same question, so a place that sets one of them
            # hides both settings of the places after it.
            alternatives = ("master", "remote") if name in ("master", "remote") else (name,)
            if level.get(name) and not any(other in found and places[other] != place for other in alternatives):
                found[name], places[name] = level[name], place
        if level.get("ship") and not ship:
            ship, places["ship"] = tuple(level["ship"]), place
        if level.get("start_timeout") is not None and start_timeout is None:
            start_timeout, places["start_timeout"] = seconds(level["start_timeout"], "start_timeout"), place
        for key, value in level.get("conf", {}).items():
            if key not in conf:
                conf[key], places[f"conf.{key}"] = value, place
    return Resolved(settings=SparkSettings(**found, ship=ship, start_timeout=start_timeout, conf=conf), places=places)


def _levels(
    given: SparkSettings | None, environment: Mapping[str, str], directory: Path
) -> list[tuple[str, dict[str, Any]]]:
    """The settings of each place, in order of precedence. All variables share the place of their prefix."""
    variables: dict[str, Any] = {name: environment.get(f"HEADRACE_SPARK_{name.upper()}") for name in _NAMES}
    variables["conf"] = _pairs(variables["conf"] or "")
    variables["ship"] = [entry.strip() for entry in (variables["ship"] or "").split(",") if entry.strip()]
    return [
        ("an argument", msgspec.structs.asdict(given) if given else {}),
        ("the environment (HEADRACE_SPARK_…)", {name: value for name, value in variables.items() if value}),
        *_file(directory),
    ]


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for pair in filter(None, map(str.strip, _PAIR_SEPARATOR.split(text.rstrip(", ")))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise SparkMisconfigured(
                f"HEADRACE_SPARK_CONF contains {pair!r}, which is not a pair. Write pairs such as spark.driver.memory=4g, separated by commas."
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _file(directory: Path) -> list[tuple[str, dict[str, Any]]]:
    """The settings in the nearest pyproject.toml. Other errors in the file are reported by Headrace's settings."""
    file = nearest_project(directory)
    if file is None:
        return []
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("headrace", {}).get("spark", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as error:
        raise SparkMisconfigured(f"{file}, which may contain {_TABLE}, can't be read: {error}.") from error
    place = f"{_TABLE} of {file}"
    if not isinstance(table, dict):
        raise SparkMisconfigured(f"tool.headrace.spark in {file} is not a table. Write {_TABLE}.")
    conf = table.get("conf", {})
    # `spark.driver.memory = "4g"` is nested tables in TOML, unless the key is quoted. Both forms
    # are accepted.
    table = {**table, "conf": _flat(conf) if isinstance(conf, dict) else conf}
    if isinstance(table.get("ship"), list):
        table["ship"] = [_beside(file, entry) for entry in table["ship"]]
    return [(place, table)]


def is_local(master: str) -> bool:
    """Whether a master's workers run in the driver's Java, as children of this process."""
    return _LOCAL.fullmatch(master) is not None


def is_path(entry: str) -> bool:
    """Whether an entry of `ship` is a path, and not the name of a module."""
    return "/" in entry or entry.startswith(".") or entry.endswith(".py")


def _beside(file: Path, entry: Any) -> Any:
    """An entry of `ship` in a file. A relative path begins at the file."""
    return str(file.parent / entry) if isinstance(entry, str) and is_path(entry) else entry


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
            raise SparkMisconfigured(
                f"The Spark setting {name!r} in {place} does not exist. The settings are {', '.join(_NAMES)}."
            )
        if name in _TEXTS and value is not None and not isinstance(value, str):
            raise SparkMisconfigured(f"The Spark setting {name!r} is {value!r} in {place}, and must be a string.")
    ship = level.get("ship") or ()
    if not isinstance(ship, list | tuple) or not all(isinstance(entry, str) and entry for entry in ship):
        raise SparkMisconfigured(
            f"The Spark setting 'ship' is {ship!r} in {place}, and must be a list of modules, packages and paths."
        )
    if level.get("start_timeout") is not None:
        try:
            limit = seconds(level["start_timeout"], "start_timeout")
        except ConfigurationError as error:
            raise SparkMisconfigured(f"{error} It is set by {place}.") from None
        if limit <= 0:
            raise SparkMisconfigured(f"start_timeout is {limit:g} s in {place}, and must be greater than 0.")
    if level.get("master") and level.get("remote"):
        raise SparkMisconfigured(
            f"Both a Spark master and a Connect server are set by {place}. Leave out 'master' or 'remote'."
        )
    if level.get("master"):
        check_master(level["master"])
    if level.get("remote") and not _REMOTE.fullmatch(level["remote"]):
        raise SparkMisconfigured(
            f"The Spark Connect server {without_token(level['remote'])!r} is invalid. Write it as sc://host:15002."
        )
    _check_conf(level.get("conf", {}), place)


def _check_conf(conf: Any, place: str) -> None:
    if not isinstance(conf, dict):
        raise SparkMisconfigured(
            f"The Spark setting 'conf' is {conf!r} in {place}, and must be a table of keys and values."
        )
    for key, value in conf.items():
        if key in _SETTING_OF_KEY:
            raise SparkMisconfigured(
                f"{key} can't be set in the Spark setting 'conf'. Use the setting {_SETTING_OF_KEY[key]!r}."
            )
        if not key.startswith("spark."):
            raise SparkMisconfigured(
                f"{key!r} in the Spark setting 'conf' is no Spark key. Spark's keys begin with 'spark.'."
            )
        if not isinstance(value, str):
            raise SparkMisconfigured(
                f"{key} in the Spark setting 'conf' is {value!r} in {place}, and must be a string."
            )


def check_master(master: str) -> None:
    """Check the form of a master. Raises `SparkMisconfigured`."""
    if not (_VALID_LOCAL.fullmatch(master) or _CLUSTER.fullmatch(master)):
        hint = " For a Connect server, use the setting 'remote'." if master.startswith("sc:") else ""
        raise SparkMisconfigured(
            f"The Spark master {master!r} is invalid. Write local[*], local[4], spark://host:7077, yarn or k8s://https://host:6443.{hint}"
        )


def without_token(remote: str) -> str:
    """The URL of a Connect server without its parameters, which may contain a token.

    They begin at the first semicolon.
    """
    url, semicolon, _ = remote.partition(";")
    return url + (";…" if semicolon else "")
