"""`module:attribute` names an app, and each kind of invalid target has its own error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.errors import UnreadableInput, UsageError
from headrace.cli.processes.app_loader import load_app
from headrace.model.errors import ConfigurationError

APP = """
from headrace import App
app = App()
idle = App()
@app.consumer("orders")
async def ship(order: dict) -> None: ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # undo changes of the path after the test
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("target_"):
            del sys.modules[name]


def _write(name: str, text: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)


def test_a_module_a_package_and_a_file() -> None:
    _write("target_module.py", APP)
    _write("target_package/__init__.py", "")
    _write("target_package/service.py", APP)
    _write("elsewhere/target_file.py", APP)
    for target in ("target_module:app", "target_package.service:app", "elsewhere/target_file.py:app"):
        assert load_app(target).consumers[0].spec.name == "ship"


@pytest.mark.parametrize(
    ("target", "problem", "expected"),
    [
        ("target_a", UsageError, "service:app"),
        (":app", UsageError, "service:app"),
        ("target_nowhere:app", UnreadableInput, "target_nowhere"),
        ("target_nowhere.service:app", UnreadableInput, "target_nowhere"),
        ("nowhere.py:app", UnreadableInput, "nowhere.py"),
        ("target_a:other", UnreadableInput, "It has the apps 'app', 'idle'"),
        ("target_a:ship", ConfigurationError, "a function"),
        ("target_a:idle", ConfigurationError, "no consumers"),
    ],
)
def test_a_missing_target_is_reported(target: str, problem: type[Exception], expected: str) -> None:
    _write("target_a.py", APP)
    with pytest.raises(problem, match=expected):
        load_app(target)


@pytest.mark.parametrize(("number", "text"), list(enumerate(["import not_installed_anywhere", "1 / 0", "def ("])))
def test_an_error_inside_the_module_comes_with_its_traceback(
    number: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(f"target_broken_{number}.py", text)
    with pytest.raises(ConfigurationError, match=f"target_broken_{number}"):
        load_app(f"target_broken_{number}:app")
    output = capsys.readouterr().err
    assert f"target_broken_{number}.py" in output
    assert "importlib" not in output


def test_two_handlers_of_one_name() -> None:
    _write("target_twice.py", APP + "app.consumer('orders', name='ship')(lambda message: None)\n")
    line = APP.count("\n") + 1
    with pytest.raises(ConfigurationError, match=f"'ship'.* It is declared in target_twice.py:{line}."):
        load_app("target_twice:app")


def test_a_file_that_another_module_hides() -> None:
    _write("elsewhere/json.py", APP)
    with pytest.raises(UnreadableInput, match="Rename the file"):
        load_app("elsewhere/json.py:app")
