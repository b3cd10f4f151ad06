"""Settings of a process. They are read from this definition, and docs/settings.md is checked against it.

One rule holds for all settings. An argument takes precedence over the environment, the environment
over `[tool.headrace]` in pyproject.toml, and pyproject.toml over the default. On the command line,
an option takes precedence over an argument in code. The operator thus sets what the code leaves out.

The pyproject.toml is the nearest one of your own or of root, searched from the working directory
upward, see `headrace.embedded.project_file`. Paths in it are relative to it. An empty variable counts as unset.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from headrace.embedded.project_file import SAFE_DIRECTORY, nearest_project
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError
from headrace.model.text.masking import masked

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]

MAX_PROCESSES = 256
PORT = 7376

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

_PREFIX = "HEADRACE_"
_TEST_PREFIX = "HEADRACE_TEST_"  # read by the tests of Headrace and by the test kit
SERVE_PREFIX = "HEADRACE_SERVE_"
"""The prefix of environment variables that are options of `headrace serve` only."""

_CLIENT_VARIABLES = frozenset(
    ("HEADRACE_SERVER", "HEADRACE_TOKEN", "HEADRACE_CA_FILE", SAFE_DIRECTORY)
)  # read by commands that talk to a server, and by the search for the project
_SPARK_VARIABLES = tuple(
    f"HEADRACE_SPARK_{name}" for name in ("MASTER", "REMOTE", "APP_NAME", "PYTHON", "SHIP", "CONF")
)
_SPARK_TABLE = "spark"  # [tool.headrace.spark]: the Spark side, which may not be installed, reads and checks it


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        name: its name in pyproject.toml. In the environment it is HEADRACE_NAME.
        description: its description.
        default: its default value.
        default_text: the default in words, where the value is not clear.
        argument: its name as an argument of `App`, if it is one.
        option: its option on the command line, if it has one.
        convert: converts a text or a TOML value. It also gets the name of the value's origin, for errors.
        in_project: whether it may be in pyproject.toml. False for settings that belong to one machine.
    """

    name: str
    description: str
    convert: Callable[[Any, str], Any]
    default: Any = None
    default_text: str | None = None
    argument: str | None = None
    option: str | None = None
    in_project: bool = True

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper()


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{place} is {value!r}, and must be a string.")
    return value


def _path(value: Any, place: str) -> Path:
    return Path(value if isinstance(value, Path) else _text(value, place)).expanduser().absolute()


def _number(minimum: int, maximum: int) -> Callable[[Any, str], int]:
    def convert(value: Any, place: str) -> int:
        text = value.strip() if isinstance(value, str) else value
        number = int(text) if isinstance(text, str) and text.isdecimal() else text
        if not isinstance(number, int) or isinstance(number, bool) or not minimum <= number <= maximum:
            raise ConfigurationError(f"{place}={value!r} is invalid. It must be a number from {minimum} to {maximum}.")
        return number

    return convert


def _one_of(choices: tuple[str, ...]) -> Callable[[Any, str], str]:
    def convert(value: Any, place: str) -> str:
        if value not in choices:
            raise ConfigurationError(f"{place} is {value!r}, and must be one of {', '.join(choices)}.")
        return str(value)

    return convert


def _switch(value: Any, place: str) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else words.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ConfigurationError(f"{place}={value!r} is invalid. It must be true or false.")
    return found


SETTINGS = (
    Setting(
        name="database", description="A Postgres URL: `postgresql://user:password@host:5432/database`. See [database URLs](database-url.md).",
        convert=_text,
        default_text="the embedded Postgres", argument="dsn", option="run --database",
    ),
    Setting(
        name="data", description="Where the embedded Postgres keeps its data.", convert=_path,
        default_text="the project's `.headrace/postgres`, or the user's", argument="data_dir", option="pg --data",
    ),
    Setting(
        name="pg_port", description="A TCP port on 127.0.0.1 for the embedded Postgres, besides its Unix socket.",
        convert=_number(1, 65535), default_text="only the socket", option="pg --port", in_project=False,
    ),
    Setting(
        name="pg_bin", description="A directory with Postgres's programs for the embedded Postgres.", convert=_path,
        default_text="the wheel's, or the system's", in_project=False,
    ),
    Setting(
        name="history", description="A directory for [histories](history.md), which a checker reads.", convert=_path,
        default_text="none", in_project=False,
    ),
    Setting(
        name="max_connections", description="The maximum number of connections of one process, besides one that listens, from 2 to 1000.",
        convert=_number(2, 1000), default=10, argument="max_connections",
    ),
    Setting(
        name="migrate", description="Whether a process upgrades the schema when it starts. If not, run `headrace migrate` before. See [upgrading](upgrading.md).",
        convert=_switch, default=True, default_text="`true`", argument="migrate", option="run --no-migrate",
    ),
    Setting(
        name="shutdown_timeout", description="How long handlers may take to finish when the process is stopped.",
        convert=seconds, default=30.0, default_text="30s", argument="shutdown_timeout",
    ),
    Setting(
        name="telemetry", description="Where traces and metrics go: `otlp`, `prometheus`, or both as `otlp,prometheus`. See [telemetry](telemetry.md).", convert=_text,
        default_text="off", argument="telemetry",
    ),
    Setting(
        name="log_level", description=f"The lowest level that is logged: {', '.join(f'`{level}`' for level in get_args(LogLevel))}.",
        convert=_one_of(get_args(LogLevel)), default="info", option="run --log-level",
    ),
    Setting(
        name="log_format", description="`text` for people, `json` for programs, or `auto`, which is `text` in a terminal and `json` elsewhere.",
        convert=_one_of(get_args(LogFormat)), default="auto", option="run --log-format",
    ),
    Setting(
        name="ready_file", description="A file that exists, and is touched every second, while the process is ready.", convert=_path,
        default_text="none", option="run --ready-file",
    ),
    Setting(
        name="processes", description=f"How many processes share the work, up to {MAX_PROCESSES}.",
        convert=_number(1, MAX_PROCESSES), default=1, option="run --processes",
    ),
    Setting(
        name="host", description="The address on which the server listens: one of this machine, or `0.0.0.0` (`::` with IPv6) for all of them.", convert=_text,
        default="127.0.0.1", option="serve --host",
    ),
    Setting(
        name="port", description="The port on which it listens, or 0 for any free one.", convert=_number(0, 65535), default=PORT,
        option="serve --port",
    ),
    Setting(
        name="tls_cert", description="A file with the server's certificate, in PEM. It enables HTTPS.", convert=_path,
        default_text="plain HTTP", option="serve --tls-cert",
    ),
    Setting(
        name="tls_key", description="A file with its unencrypted private key, if it is not in the same one.", convert=_path,
        default_text="in `tls_cert`", option="serve --tls-key",
    ),
)  # fmt: skip
"""All settings, in the order of the documentation."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings of this process. See `SETTINGS`. Durations are in seconds."""

    database: str | None
    data: Path | None
    pg_port: int | None
    pg_bin: Path | None
    history: Path | None
    max_connections: int
    migrate: bool
    shutdown_timeout: float
    telemetry: str | None
    log_level: LogLevel
    log_format: LogFormat
    ready_file: Path | None
    processes: int
    host: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None

    def __repr__(self) -> str:
        """Masks the database's password, since this text may be logged."""
        shown = msgspec.structs.asdict(self) | {"database": None if self.database is None else masked(self.database)}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def read(
    arguments: Mapping[str, Any] = _NO_ARGUMENTS,
    *,
    environment: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> Settings:
    """Read the effective settings.

    Args:
        arguments: by the setting's name. None counts as unset.
        environment: the environment variables.
        directory: where to start looking for pyproject.toml. None for the working directory. Parent
            directories are searched, too.

    Raises:
        ConfigurationError: a value is invalid, or a key in [tool.headrace] is not a setting.
    """
    file = nearest_project(directory or Path.cwd(), environment)
    project = {} if file is None else _project(file)
    return Settings(**{setting.name: _value(setting, arguments, environment, project, file) for setting in SETTINGS})


DEFAULTS = Settings(**{setting.name: setting.default for setting in SETTINGS})


def check(arguments: Mapping[str, Any]) -> None:
    """Validate the settings that were passed as arguments. Raises `ConfigurationError`."""
    for setting in SETTINGS:
        _argument(setting, arguments)


def _argument(setting: Setting, arguments: Mapping[str, Any]) -> Any:
    value = arguments.get(setting.name)
    return None if value is None else setting.convert(value, setting.argument or setting.name)


def _value(
    setting: Setting,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    project: Mapping[str, Any],
    file: Path | None,
) -> Any:
    if (argument := _argument(setting, arguments)) is not None:
        return argument
    if text := environment.get(setting.variable):
        return setting.convert(text, setting.variable)
    if setting.name in project:
        assert file is not None
        value = project[setting.name]
        if setting.convert is _path and isinstance(value, str):
            value = str(file.parent / Path(value).expanduser())
        return setting.convert(value, f"{setting.name} in [tool.headrace] of {file}")
    return setting.default


def _project(file: Path) -> Mapping[str, Any]:
    """Read the table [tool.headrace], and reject unknown keys."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("headrace", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file}, which may contain [tool.headrace], can't be read: {error}.") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"tool.headrace in {file} is not a table. Write [tool.headrace].")
    known = [setting.name for setting in SETTINGS if setting.in_project]
    for key in table:
        if key not in known and key != _SPARK_TABLE:
            suggestion = _suggestion(key, known)
            hint = "" if suggestion is None else f" Did you mean {suggestion}?"
            raise ConfigurationError(
                f"The setting {key!r} in [tool.headrace] of {file} does not exist.{hint} The settings are {', '.join(known)}."
            )
    return table


def unknown_variables(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str | None]]:
    """Yield each HEADRACE_ variable that is not a setting, and the one with a similar name, if there is one."""
    known = [setting.variable for setting in SETTINGS] + [*_SPARK_VARIABLES]
    for name in sorted(environment):
        is_headrace = name.startswith(_PREFIX) and not name.startswith((_TEST_PREFIX, SERVE_PREFIX))
        if is_headrace and name not in known and name not in _CLIENT_VARIABLES:
            yield name, _suggestion(name, known)


def _suggestion(name: str, known: list[str]) -> str | None:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return matches[0] if matches else None
