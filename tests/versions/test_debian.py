"""Programs from Debian's newest suites: fetched once, installed nowhere, and reported where they can't be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.versions import debian, postgres
from tests.versions.fetching import NotFetchedError

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
        debian.fetch(debian.postgres(19), tmp_path / "cache")


def test_the_server_is_the_one_of_debians_packages_in_the_configuration(program: Program, tmp_path: Path) -> None:
    program("dpkg-deb", "exit 0")
    program("apt-get", "echo https://one.test/debian-security/ https://two.test/debian/")
    assert debian._debian_server(tmp_path) == "https://two.test/debian/"
    program("apt-get", "echo https://one.test/ubuntu/")
    with pytest.raises(NotFetchedError, match="not configured for Debian's packages"):
        debian.fetch(debian.postgres(19), tmp_path / "cache")


def test_what_apt_says_is_the_reason_and_nothing_is_left(program: Program, tmp_path: Path) -> None:
    program("dpkg-deb", "exit 0")
    program(
        "apt-get", 'test "$1" = indextargets && echo https://two.test/debian/ && exit; echo "no network" >&2; exit 100'
    )
    with pytest.raises(NotFetchedError, match="apt-get failed: no network"):
        debian.fetch(debian.postgres(19), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_server_its_clients_and_all_their_libraries_are_fetched_once(program: Program, tmp_path: Path) -> None:
    program("apt-cache", "printf 'postgresql-19\\n  Depends: libc6\\nlibc6\\nlibperl5\\nperl\\nzlib1g\\n'")
    program(
        "apt-get",
        f'echo "$@" >> {tmp_path}/log; case "$*" in *indextargets*) echo https://two.test/debian/;; *download*) : > libc6.deb;; esac',
    )
    (tmp_path / "first").mkdir()
    assert [path.name for path in debian._fetch(debian.postgres(19), tmp_path / "first")] == ["libc6.deb"]
    *_, asked = (tmp_path / "log").read_text().splitlines()
    assert asked.endswith("download postgresql-19 postgresql-client-19 libc6 zlib1g")
    sources = (tmp_path / "first" / "sources.list").read_text()
    assert [line.split()[2:] for line in sources.splitlines()] == [
        ["https://two.test/debian/", "sid", "main"],
        ["https://two.test/debian/", "experimental", "main"],
    ]


def test_an_interpreter_comes_with_its_standard_library_and_with_pip(program: Program, tmp_path: Path) -> None:
    program("apt-cache", "echo libpython3.15-stdlib")
    program(
        "apt-get",
        f'echo "$@" >> {tmp_path}/log; case "$*" in *indextargets*) echo https://two.test/debian/;; esac',
    )
    debian._fetch(debian.python(15), tmp_path)
    *_, asked = (tmp_path / "log").read_text().splitlines()
    assert asked.endswith("download python3.15 python3.15-minimal python3-pip libpython3.15-stdlib")


def test_only_programs_are_told_where_their_libraries_are(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader itself is linked to from beside them."""
    loader, programs = tmp_path / "unpacked/usr/lib/some-linux-gnu/ld-linux-x.so.2", tmp_path / "unpacked/usr/bin"
    for directory in (loader.parent, programs):
        directory.mkdir(parents=True)
    for path in (loader, programs / "python3.15"):
        path.write_bytes(b"\x7fELF")
    (programs / "pip").write_text("#!/bin/sh\n")
    (programs / "ld.so").symlink_to(loader)
    commands: list[list[str]] = []
    monkeypatch.setattr(debian, "run", lambda command, _: commands.append([str(word) for word in command]))
    debian._use_own_libraries(programs / "python3.15", tmp_path / "unpacked", tmp_path / "tree", tmp_path)
    (changed,) = [command for command in commands if command[0].endswith("patchelf")]
    assert changed[-1] == str(programs / "python3.15")
    assert str(tmp_path / "tree/usr/lib/some-linux-gnu/ld-linux-x.so.2") in changed


def test_an_interpreter_that_was_fetched_is_not_fetched_again(program: Program, tmp_path: Path) -> None:
    place = debian.place_of(debian.python(15), tmp_path)
    place.parent.mkdir(parents=True)
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    assert debian.fetch(debian.python(15), tmp_path) == place
    place.write_text("#!/bin/sh\necho no library >&2; exit 1\n")
    with pytest.raises(NotFetchedError, match="doesn't run on this machine: no library"):
        debian.fetch(debian.python(15), tmp_path)


def test_the_upcoming_version_is_had_from_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: debian.Program) -> Path:
        raise NotFetchedError("no apt-get")

    monkeypatch.setattr(postgres, "installations", lambda: iter(()))
    monkeypatch.setattr(debian, "fetch", refuse)
    assert postgres.run(postgres.majors(["19"]), ["no-such-command"]) == (
        True,
        ["NOT TESTED ON POSTGRESQL 19: no apt-get"],
    )
