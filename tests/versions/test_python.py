"""Tests on other versions of Python: what they install, and which Python is the newest."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.versions import debian, python
from tests.versions.fetching import NotFetchedError

PythonThat = Callable[[str], Path]


@pytest.fixture
def document() -> dict[str, Any]:
    return tomllib.loads((python.PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def python_that(tmp_path: Path) -> PythonThat:
    """Return a program that prints this instead of the version of a Python."""
    numbers = itertools.count()

    def make(printed: str) -> Path:
        path = tmp_path / f"python{next(numbers)}"
        path.write_text(f"#!/bin/sh\n{printed}\n")
        path.chmod(0o755)
        return path

    return make


class TestRequirements:
    def test_are_those_of_the_project_its_extras_and_the_tests(self) -> None:
        document = {
            "project": {
                "name": "some",
                "dependencies": ["a>=1"],
                "optional-dependencies": {"one": ["some[more]", "b"], "more": ["c[x]>=2", "a>=1"], "spark": ["d"]},
            },
            "dependency-groups": {"test": ["e"], "lint": ["f"]},
        }
        assert python.requirements(document, without=("spark",)) == ["a>=1", "b", "c[x]>=2", "e"]

    def test_may_leave_out_spark(self, document: dict[str, Any]) -> None:
        found = " ".join(python.requirements(document, without=("spark",)))
        assert "asyncpg" in found
        assert "litestar" in found
        assert "pytest" in found
        assert "spark" not in found
        assert "headrace" not in found


@pytest.mark.process
class TestTheNewest:
    def test_is_chosen_by_its_numbers(self, python_that: PythonThat) -> None:
        nine, ten = python_that("echo final 3 9 2"), python_that("echo final 3 10 0")
        assert python.newest([nine, ten]) == ((3, 10, 0), ten)

    def test_is_no_preview_and_runs(self, python_that: PythonThat, tmp_path: Path) -> None:
        fine, preview = python_that("echo final 3 12 1"), python_that("echo alpha 3 15 0")
        shim, missing = python_that("echo 'not found' >&2; exit 127"), tmp_path / "missing"
        assert python.newest([preview, shim, missing, fine]) == ((3, 12, 1), fine)

    def test_may_be_missing(self) -> None:
        assert python.newest([]) is None

    def test_is_asked_as_this_one_answers(self) -> None:
        found = python.newest([Path(sys.executable)])
        assert found is not None
        assert found[0] == sys.version_info[:3]


@pytest.mark.process
class TestANamedPython:
    @pytest.fixture(autouse=True)
    def here(self, python_that: PythonThat, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """The Pythons of this machine. Debian has none."""

        def refuse(program: debian.Program) -> Path:
            raise NotFetchedError(f"no {program.title}")

        here = [python_that("echo final 3 13 1"), python_that("echo final 3 13 2"), python_that("echo beta 3 14 0")]
        monkeypatch.setattr(python, "candidates", lambda: here)
        monkeypatch.setattr(debian, "fetch", refuse)
        return here

    @pytest.mark.parametrize("word", ["3.13", "python3.13"])
    def test_is_the_newest_of_its_version_on_this_machine(self, here: list[Path], word: str) -> None:
        assert python.named(word) == here[1]

    def test_may_be_a_preview(self, here: list[Path]) -> None:
        assert python.named("3.14") == here[2]

    def test_may_be_a_path(self, here: list[Path]) -> None:
        assert python.named(str(here[0])) == here[0]

    def test_is_had_from_debian_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(debian, "fetch", debian.place_of)
        assert python.named("3.15") == debian.place_of(debian.python(15))

    @pytest.mark.parametrize("word", ["3.15", "python3.15"])
    def test_that_can_not_be_had_is_reported_and_fails_nothing(
        self, word: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert python.main([word, "--short"]) == 0
        assert capsys.readouterr().out == "NOT TESTED ON PYTHON 3.15: no Python 3.15\n"

    @pytest.mark.parametrize("word", ["3.10", "python3.9", "2.7", "3.1५", "no-such-python", ""])
    def test_must_exist_and_be_supported(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"does not support Python 3\.|is neither a Python of this machine"):
            python.named(word)

    def test_gets_the_other_arguments(
        self, here: list[Path], python_that: PythonThat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        here.append(
            python_that(f'test "$1" = -c && echo final 3 16 0 || {{ echo "$@" > {tmp_path}/arguments; exit 3; }}')
        )
        assert python.main(["3.16", "--jobs", "1", "--", "tests/app", "-x"]) == 3
        assert (tmp_path / "arguments").read_text() == "-m tests.versions.python --jobs 1 -- tests/app -x\n"


class TestContinuousIntegration:
    def test_says_when_there_is_no_newer_python(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(python, "newest", lambda _: (sys.version_info[:3], Path(sys.executable)))
        assert python.main(["--newest"]) == 0
        assert "NOT TESTED ON A NEWER PYTHON" in capsys.readouterr().out

    @pytest.mark.process
    def test_says_when_the_environment_cannot_be_made(
        self, python_that: PythonThat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(python, "newest", lambda _: ((3, 99, 0), python_that("exit 1")))
        assert python.main(["--newest"]) == 0
        assert "NOT TESTED ON PYTHON 3.99.0" in capsys.readouterr().out

    @pytest.mark.process
    def test_fails_if_the_tests_fail(self, python_that: PythonThat, monkeypatch: pytest.MonkeyPatch) -> None:
        failing = python_that('case "$*" in *--prepare*) exit 0;; esac; exit 3')
        monkeypatch.setattr(python, "newest", lambda _: ((3, 99, 0), failing))
        assert python.main(["--newest", "--short"]) == 3

    @pytest.mark.process
    def test_needs_nothing_but_python(self) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(python.PROJECT)!r}); import tests.versions.python"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_classifiers_name_versions_that_are_allowed(document: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: "
    named = [one.removeprefix(prefix) for one in document["project"]["classifiers"] if one.startswith(f"{prefix}3.")]
    allowed = SpecifierSet(document["project"]["requires-python"])
    assert named == ["3.11", "3.12", "3.13", "3.14", "3.15"]
    assert all(version in allowed for version in named)


def test_the_tests_exist() -> None:
    for one in (*python.SUITE, *python.SHORT):
        assert (python.PROJECT / one).is_dir(), one


def test_every_version_in_the_lock_runs_on_the_oldest_python() -> None:
    """Otherwise pip refuses it there, and `make test` ends before the first test."""
    refused = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", python.LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        with suppress(PackageNotFoundError):
            package = distribution(name)
            needed = package.metadata.get("Requires-Python", "")
            if package.version == version and "3.11.0" not in SpecifierSet(needed):
                refused[name] = needed
    assert refused == {}


def jumps(nodes: Iterable[ast.AST], *, in_loop: bool = False) -> Iterator[int]:
    """Yield the lines of the statements that leave a block. They swallow an error if the block is a `finally`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not in_loop):
            yield node.lineno
        is_loop = isinstance(node, ast.For | ast.AsyncFor | ast.While)
        yield from jumps(ast.iter_child_nodes(node), in_loop=in_loop or is_loop)


def test_no_finally_swallows_an_error() -> None:
    """Python 3.14 warns of it. The linter does not see it below a `with`."""
    found = [
        f"{path.relative_to(python.PROJECT)}:{line}"
        for folder in ("framework", "spark", "app_template", "benchmarks", "deploy", "docsite", "examples", "tests")
        for path in (python.PROJECT / folder).rglob("*.py")
        if b"finally:" in (text := path.read_bytes())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Try | ast.TryStar)
        for line in jumps(node.finalbody)
    ]
    assert found == []
    assert [*jumps(ast.parse("with a:\n  for b in c:\n    break\n  def d():\n    return\n  return").body)] == [6]
