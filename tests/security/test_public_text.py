"""The text of an error for callers is decided by one function, `public_text`: no host, user, database, or the driver's words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import store
from headrace.model.errors import (
    HeadraceError,
    InvalidInput,
    NotConnected,
    StoreUnavailable,
    UnknownStream,
    public_text,
)
from headrace.server.background.jobs import JobRunner
from headrace.server.live import refreshing
from headrace.store import ClaimedJob
from headrace.store.database.errors import translate
from tests.server.calling import Api

ROOT = Path(headrace.__file__).parent
PUBLISHING = ("server", "sources/postgres/capture", "sources/postgres/backfill", "app/heartbeats.py")
"""The code that answers callers, or stores what they read."""

SECRETS = ("db.internal", "headrace_role", "orders_db", "server closed", "relation", "secret detail")
UNAVAILABLE = "The database at postgresql://headrace_role@db.internal/orders_db can't be reached: server closed."


def _unavailable() -> StoreUnavailable:
    found = translate(OSError("server closed"), "postgresql://headrace_role@db.internal/orders_db")
    assert isinstance(found, StoreUnavailable)
    assert str(found) == UNAVAILABLE
    return found


def _clean(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


# --- each place that was found, and more of its kind


@pytest.mark.asyncio
async def test_the_live_state_of_an_outage_has_no_word_of_the_database(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.stream()
    live = api.server.live
    assert (await api.get("/live"))["data"]["database"]["error"] is None

    async def fails(*_: Any) -> Any:
        raise _unavailable()

    monkeypatch.setattr(refreshing, "read_all", fails)
    live._due = float("-inf")
    answer = await api.get("/live")
    assert answer["data"]["database"]["reachable"] is False
    assert _clean(str(answer)), answer
    live._due, live._snapshot = float("-inf"), None
    assert _clean(str(await api.refused("GET", "/live", status=503)))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        UnknownStream("The stream was just deleted (relation secret detail).").with_public(
            "The stream was just deleted."
        ),
        InvalidInput("The database can't store the value: secret detail.").with_public(
            "The database can't store a value."
        ),
    ],
)
async def test_a_job_keeps_what_callers_may_read_only(monkeypatch: pytest.MonkeyPatch, error: HeadraceError) -> None:
    kept: list[str] = []

    async def fail_job(_: Any, __: Any, text: str) -> None:
        kept.append(text)

    async def fails(_: Any) -> None:
        raise error

    monkeypatch.setattr(store, "fail_job", fail_job)
    runner = JobRunner()
    runner._database = None  # type: ignore[assignment]
    monkeypatch.setattr(runner, "_work_on", fails)
    await runner._take_turn(ClaimedJob(id=1, claim=1, kind="purge", stream="orders", consumer="ship"))
    assert kept == [error.public]


def test_an_error_that_is_not_ours_says_nothing() -> None:
    assert public_text(_unavailable()) == StoreUnavailable.public
    for error in (
        OSError("server closed"),
        KeyError("secret detail"),
        ExceptionGroup("relation", [ValueError("orders_db")]),
    ):
        assert _clean(public_text(error))
    assert public_text(InvalidInput("limit=0 must be 1 or more.")) == "limit=0 must be 1 or more."
    assert "not connected" in public_text(NotConnected("secret detail"))


# --- all others


def _classes(kind: type[BaseException]) -> Iterator[str]:
    yield kind.__name__
    for one in kind.__subclasses__():
        yield from _classes(one)


_CLASSES = frozenset(("Exception", "Error", *_classes(HeadraceError)))
"""Parts of the names of exceptions in annotations."""


def _errors(function: ast.AST) -> set[str]:
    """The names that stand for an exception: of `except … as name`, and of parameters and names annotated as one."""
    found = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation is not None:
            said = ast.unparse(node.annotation)
            if any(word in said for word in _CLASSES):
                found.add(node.arg)
    return found


def _names(node: ast.AST, errors: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in errors for one in ast.walk(node))


def _is_text_of(node: ast.AST, errors: set[str]) -> bool:
    """Whether an expression is the text of an exception, or a part of it."""
    match node:
        case ast.Call(
            func=ast.Name(id="str" | "repr" | "format" | "text_of" | "error_text" | "first_line"), args=[first, *_]
        ):
            return _names(first, errors)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return name in errors
        case ast.Attribute(value=ast.Name(id=name), attr="args" | "__traceback__" | "__cause__"):
            return name in errors
        case ast.Attribute(value=ast.Name(id="traceback"), attr=name):
            return name.startswith("format")
    return False


def _uses(path: Path) -> Iterator[tuple[int, str]]:
    """Where a file makes text of an exception outside of the log, without `# public: ` and a reason in the statement."""
    source = path.read_text(encoding="utf-8")
    lines, tree = source.splitlines(), ast.parse(source)
    excused: set[int] = set()
    for node in ast.walk(tree):
        logs = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")
        simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if logs or (simple and any("# public: " in line for line in lines[node.lineno - 1 : node.end_lineno])):  # type: ignore[attr-defined]
            excused |= {id(inner) for inner in ast.walk(node)}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            errors = _errors(function)
            for node in ast.walk(function):
                if id(node) not in excused and _is_text_of(node, errors):
                    line = lines[node.lineno - 1]  # type: ignore[attr-defined]
                    if "# public: " not in line:
                        yield node.lineno, line.strip()  # type: ignore[attr-defined]


def test_no_text_of_an_exception_goes_where_callers_read_it() -> None:
    """`public_text(error)` is for callers. A line that says something else of an error has `# public: ` and why."""
    files = [
        file for part in PUBLISHING for file in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"))
    ]
    assert len(files) > 120
    found = {f"{file.relative_to(ROOT)}:{number}: {line}" for file in files for number, line in _uses(file)}
    assert not found, "\n".join(["", *sorted(found)])


@pytest.mark.parametrize(
    "line",
    ["return str(error)", "return repr(error)", "return f'It failed: {error}'", "return error.args[0]", "raise E(str(error) or 'x')",
     "return traceback.format_exc()", "self.text = text_of(error)"],
)  # fmt: skip
def test_the_lint_sees(line: str, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        f"def f():\n    try:\n        g()\n    except ValueError as error:\n        log.error('x', error=str(error))\n        {line}\n"
    )
    assert [number for number, _ in _uses(file)] == [6]
