"""Settings: one rule of precedence, validation where a value is given, and documentation that is
generated from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import App, ConfigurationError
from headrace.app import settings
from headrace.app.settings import SETTINGS, Settings, read, table, unknown_variables

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
    ("text", "said"),
    [
        (
            "[tool.headrace]\ndatabse = 'x'\n",
            "has no setting 'databse'; did you mean database: there are database, data,",
        ),
        ("[tool.headrace]\npg_port = 5432\n", "has no setting 'pg_port'"),
        (
            "[tool.headrace]\nprocesses = 'many'\n",
            "processes in .*pyproject.toml='many' must be a number from 1 to 256",
        ),
        ("[tool.headrace]\nprocesses = true\n", "processes in .*=True must be"),
        ("[tool.headrace]\ndatabase = 5\n", "database in .* is 5, and must be a text"),
        ("[tool]\nheadrace = 5\n", r"must be a table: \[tool.headrace\]"),
        ("[tool.headrace\n", r"pyproject.toml can't be read, where \[tool.headrace\] may be"),
    ],
)
def test_an_invalid_project_setting_is_refused_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(environment={}, directory=_project(tmp_path, text))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HEADRACE_MAX_CONNECTIONS", "1", "HEADRACE_MAX_CONNECTIONS='1' must be from 2 to 1000"),
        ("HEADRACE_PROCESSES", "four", "HEADRACE_PROCESSES='four' must be a number from 1 to 256"),
        ("HEADRACE_SHUTDOWN_TIMEOUT", "soon", "HEADRACE_SHUTDOWN_TIMEOUT='soon' is not a duration"),
        ("HEADRACE_LOG_LEVEL", "loud", "HEADRACE_LOG_LEVEL is 'loud', and must be one of debug, info, warning, error"),
    ],
)
def test_an_invalid_variable_is_named(tmp_path: Path, variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(environment={variable: value}, directory=tmp_path)


def test_unknown_variables_are_found_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = {"HEADRACE_TEST_DSN": "x", "HEADRACE_DATA": "x", "PATH": "x", "HEADRACE_SPARK_MASTER": "x"}
    assert list(unknown_variables(fine | {"HEADRACE_DATABSE": "x", "HEADRACE_SPARK_MASTR": "x"})) == [
        "The environment has HEADRACE_DATABSE, which is no setting; did you mean HEADRACE_DATABASE.",
        "The environment has HEADRACE_SPARK_MASTR, which is no setting; did you mean HEADRACE_SPARK_MASTER.",
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
        assert "The environment has HEADRACE_MAXIMUM, which is no setting." in caplog.messages


@pytest.mark.asyncio
@pytest.mark.parametrize(("argument", "most"), [(None, 7), (3, 3)])
async def test_the_environment_decides_settings_that_code_leaves_out(
    dsn: str, monkeypatch: pytest.MonkeyPatch, argument: int | None, most: int
) -> None:
    monkeypatch.setenv("HEADRACE_MAX_CONNECTIONS", "7")
    async with App(dsn, max_connections=argument) as app:
        assert app.database.max_connections == most


@pytest.mark.parametrize("wrong", [{"max_connections": 1}, {"shutdown_timeout": "later"}, {"data_dir": 5}])
def test_an_invalid_argument_is_refused_where_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        App(**wrong)


def test_every_setting_has_its_field_and_a_valid_default() -> None:
    assert tuple(setting.name for setting in SETTINGS) == Settings.__struct_fields__
    for setting in SETTINGS:
        assert setting.default is None or setting.convert(setting.default, setting.name) == setting.default
        assert setting.default is not None or setting.otherwise, setting.name


def test_the_table_in_the_documentation_is_that_of_the_code() -> None:
    assert table() in DOCS.read_text(encoding="utf-8"), "write settings.table() into docs/settings.md"
