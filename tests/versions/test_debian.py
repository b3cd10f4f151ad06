"""Programs from Debian's newest suites: fetched once, installed nowhere, and reported where they can't be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.versions import debian, postgres
from tests.versions.packages import NotFetchedError

pytestmark = pytest.mark.process

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a shell script on the path, as the only program there."""
    directory = tmp_path / "path"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def write(name: str, script: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)

    return write


def test_without_apt_there_are_none(program: Program, tmp_path: Path) -> None:
    program("dpkg-deb", "exit 0")
    with pytest.raises(NotFetchedError, match="there is no apt-get here"):
        debian.programs(19, tmp_path / "cache")


def test_the_server_is_the_one_of_debians_packages_in_the_configuration(program: Program, tmp_path: Path) -> None:
    program("dpkg-deb", "exit 0")
    program("apt-get", "echo https://one.test/debian-security/ https://two.test/debian/")
    assert debian._debian_server(tmp_path) == "https://two.test/debian/"
    program("apt-get", "echo https://one.test/ubuntu/")
    with pytest.raises(NotFetchedError, match="not configured for Debian's packages"):
        debian.programs(19, tmp_path / "cache")


def test_what_apt_says_is_the_reason_and_nothing_is_left(program: Program, tmp_path: Path) -> None:
    program("dpkg-deb", "exit 0")
    program(
        "apt-get", 'test "$1" = indextargets && echo https://two.test/debian/ && exit; echo "no network" >&2; exit 100'
    )
    with pytest.raises(NotFetchedError, match="apt-get failed: no network"):
        debian.programs(19, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_server_its_clients_and_all_their_libraries_are_fetched_once(program: Program, tmp_path: Path) -> None:
    program("apt-cache", "printf 'postgresql-19\\n  Depends: libc6\\nlibc6\\nlibperl5\\nperl\\nzlib1g\\n'")
    program(
        "apt-get",
        f'echo "$@" >> {tmp_path}/log; case "$*" in *indextargets*) echo https://two.test/debian/;; *download*) : > libc6.deb;; esac',
    )
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    assert [path.name for path in debian._fetch(19, tmp_path / "first")] == ["libc6.deb"]
    *_, asked = (tmp_path / "log").read_text().splitlines()
    assert asked.endswith("download postgresql-19 postgresql-client-19 libc6 zlib1g")
    sources = (tmp_path / "first" / "sources.list").read_text()
    assert [line.split()[2:] for line in sources.splitlines()] == [
        ["https://two.test/debian/", "sid", "main"],
        ["https://two.test/debian/", "experimental", "main"],
    ]


def test_the_upcoming_version_is_had_from_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: int) -> Path:
        raise NotFetchedError("no apt-get")

    monkeypatch.setattr(postgres, "installations", lambda: iter(()))
    monkeypatch.setattr(debian, "programs", refuse)
    assert postgres.run(postgres.majors(["19"]), ["no-such-command"]) == (
        True,
        ["NOT TESTED ON POSTGRESQL 19: no apt-get"],
    )
