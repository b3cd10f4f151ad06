"""Settings: one rule of precedence, validation where a value is given, and documentation that is
generated from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import App, ConfigurationError
from headrace.app import settings
from headrace.app.settings import SETTINGS, Settings, read, unknown_variables
from tests.support.logs import logged

DOCS = Path(__file__).parents[2] / "docs/settings.md"


def _project(directory: Path, text: str) -> Path:
    (directory / "pyproject.toml").write_text(text)
    return directory


def test_an_argument_counts_before_the_environment_before_the_project_before_the_default(tmp_path: Path) -> None:
    _project(tmp_path, "[tool.headrace]\nmax_connections = 4\nprocesses = 4\nlog_level = 'debug'\n")
    environment = {"HEADRACE_MAX_CONNECTIONS": "5", "HEADRACE_PROCESSES": "5"}
    found = read({"max_connections": 6, "processes": None}, environment=environment, directory=tmp_path)
    assert (found.max_connections, found.processes, found.log_level, found.log_format) == (6, 5, "debug", "auto")


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert read(environment={}, directory=_project(tmp_path, "")) == settings.DEFAULTS


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    found = read(environment={"HEADRACE_DATABASE": ""}, directory=_project(tmp_path, ""))
    assert found.database is None


def test_the_nearest_project_counts_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    below = tmp_path / "a/b"
    below.mkdir(parents=True)
    _project(tmp_path, "[tool.headrace]\nprocesses = 9\n")
    _project(tmp_path / "a", "[tool.headrace]\nready_file = 'run/ready'\ndata = '/var/pg'\n")
    found = read(environment={}, directory=below)
    assert (found.processes, found.ready_file, found.data) == (1, tmp_path / "a/run/ready", Path("/var/pg"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[tool.headrace]\ndatabse = 'x'\n",
            r"'databse' in .* does not exist\. Did you mean database\? The settings are database, data,",
        ),
        ("[tool.headrace]\npg_port = 5432\n", "'pg_port' in .* does not exist"),
        (
            "[tool.headrace]\nprocesses = 'many'\n",
            r"processes in .*pyproject.toml='many' is invalid\. It must be a number from 1 to 256",
        ),
        ("[tool.headrace]\nprocesses = true\n", "processes in .*=True is invalid"),
        ("[tool.headrace]\ndatabase = 5\n", "database in .* is 5, and must be a string"),
        ("[tool]\nheadrace = 5\n", r"is not a table\. Write \[tool.headrace\]"),
        ("[tool.headrace\n", r"pyproject.toml, which may contain \[tool.headrace\], can't be read"),
    ],
)
def test_an_invalid_project_setting_is_refused_with_what_would_be_right(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        read(environment={}, directory=_project(tmp_path, text))


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        (
            "HEADRACE_MAX_CONNECTIONS",
            "1",
            r"HEADRACE_MAX_CONNECTIONS='1' is invalid\. It must be a number from 2 to 1000",
        ),
        ("HEADRACE_PROCESSES", "four", r"HEADRACE_PROCESSES='four' is invalid\. It must be a number from 1 to 256"),
        ("HEADRACE_SHUTDOWN_TIMEOUT", "soon", "HEADRACE_SHUTDOWN_TIMEOUT='soon' is not a duration"),
        ("HEADRACE_LOG_LEVEL", "loud", "HEADRACE_LOG_LEVEL is 'loud', and must be one of debug, info, warning, error"),
    ],
)
def test_an_invalid_variable_is_named(tmp_path: Path, variable: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        read(environment={variable: value}, directory=tmp_path)


def test_unknown_variables_are_found_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = {"HEADRACE_TEST_DSN": "x", "HEADRACE_DATA": "x", "PATH": "x", "HEADRACE_SPARK_MASTER": "x"}
    assert list(unknown_variables(fine | {"HEADRACE_DATABSE": "x", "HEADRACE_SPARK_MASTR": "x"})) == [
        ("HEADRACE_DATABSE", "HEADRACE_DATABASE"),
        ("HEADRACE_SPARK_MASTR", "HEADRACE_SPARK_MASTER"),
    ]


def test_the_spark_settings_of_a_project_are_ignored_here(tmp_path: Path) -> None:
    project = _project(tmp_path, "[tool.headrace]\nprocesses = 2\n[tool.headrace.spark]\nmaster = 'local[2]'\n")
    assert read(environment={}, directory=project).processes == 2


@pytest.mark.asyncio
async def test_an_app_logs_a_warning_of_unknown_variables_when_it_connects(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_MAXIMUM", "1")
    async with App(dsn):
        assert logged(caplog, "unknown variable in the environment", variable="HEADRACE_MAXIMUM")


@pytest.mark.asyncio
@pytest.mark.parametrize(("argument", "maximum"), [(None, 7), (3, 3)])
async def test_the_environment_decides_settings_that_code_leaves_out(
    dsn: str, monkeypatch: pytest.MonkeyPatch, argument: int | None, maximum: int
) -> None:
    monkeypatch.setenv("HEADRACE_MAX_CONNECTIONS", "7")
    async with App(dsn, max_connections=argument) as app:
        assert app.database.max_connections == maximum


@pytest.mark.parametrize("wrong", [{"max_connections": 1}, {"shutdown_timeout": "later"}, {"data_dir": 5}])
def test_an_invalid_argument_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        App(**wrong)


def test_every_setting_has_its_field_and_a_valid_default() -> None:
    assert tuple(setting.name for setting in SETTINGS) == Settings.__struct_fields__
    for setting in SETTINGS:
        assert setting.default is None or setting.convert(setting.default, setting.name) == setting.default
        assert setting.default is not None or setting.default_text, setting.name
