"""Packages with Postgres's programs: pinned, fetched once, and unpacked whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from headrace.embedded.binaries import OLDEST_MAJOR
from tests.versions import fetching, packages
from tests.versions.fetching import NotFetchedError
from tests.versions.packages import Package, WrongDigestError, package_for, programs
from tests.versions.postgres import NEWEST_MAJOR

POSTGRES = "#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n"


def archive_of(directory: Path, postgres: str = POSTGRES) -> tuple[Package, Path]:
    """Return a package, and its archive as npm would fetch it."""
    path = directory / "fetched.tgz"
    links = [{"source": "native/lib/libpq.so.5.15", "target": "native/lib/libpq.so.5"}]
    files = {
        "native/bin/postgres": (postgres, 0o755),
        "native/lib/libpq.so.5.15": ("library", 0o600),
        "native/pg-symlinks.json": (json.dumps(links), 0o644),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, (text, mode) in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(text), mode
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    return Package("@some/postgres", "15.1.0", digest), path


class TestAPackage:
    @pytest.mark.process
    def test_is_unpacked_with_the_links_of_its_libraries(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path)
        found = programs(package, tmp_path / "cache", lambda *_: archive)
        assert (found / "postgres").read_text() == POSTGRES
        link = found.parent / "lib" / "libpq.so.5"
        assert link.read_text() == "library"
        assert not Path(os.readlink(link)).is_absolute()

    @pytest.mark.process
    def test_can_be_used_by_another_user(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path)
        before = os.umask(0o077)
        try:
            tree = programs(package, tmp_path / "cache", lambda *_: archive).parent
        finally:
            os.umask(before)
        for path in (tree, *tree.rglob("*")):
            readable = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
            assert path.stat().st_mode & readable == readable, path

    @pytest.mark.process
    def test_is_fetched_once(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path)
        first = programs(package, tmp_path / "cache", lambda *_: archive)
        archive.unlink()
        assert programs(package, tmp_path / "cache", lambda *_: archive) == first

    @pytest.mark.process
    def test_leaves_nothing_else_behind(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path)
        found = programs(package, tmp_path / "cache", lambda *_: archive)
        assert list((tmp_path / "cache").iterdir()) == [found.parent]

    def test_with_another_digest_is_refused_before_it_is_unpacked(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path)
        archive.write_bytes(archive.read_bytes() + b"\0")
        with pytest.raises(WrongDigestError, match=r"@some/postgres@15\.1\.0 has the SHA-512 .* is expected"):
            programs(package, tmp_path / "cache", lambda *_: archive)
        assert not list((tmp_path / "cache").iterdir())

    @pytest.mark.process
    def test_whose_programs_do_not_run_here_is_not_to_be_had(self, tmp_path: Path) -> None:
        package, archive = archive_of(tmp_path, "#!/bin/sh\necho 'version GLIBC_9 not found' >&2; exit 1\n")
        with pytest.raises(NotFetchedError, match="doesn't run on this machine: version GLIBC_9 not found"):
            programs(package, tmp_path / "cache", lambda *_: archive)

    def test_that_is_not_fetched_leaves_nothing_to_mistake_for_it(self, tmp_path: Path) -> None:
        def fail(*_: object) -> Path:
            raise NotFetchedError("npm failed: no network")

        package, _ = archive_of(tmp_path)
        with pytest.raises(NotFetchedError, match="no network"):
            programs(package, tmp_path / "cache", fail)
        assert not list((tmp_path / "cache").iterdir())


class TestFetching:
    """With an npm of the test's own."""

    @pytest.fixture
    def npm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "bin" / "npm"
        path.parent.mkdir()
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        return path

    def write(self, npm: Path, lines: str) -> None:
        npm.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\n{lines}\n')
        npm.chmod(0o755)

    @pytest.mark.process
    def test_names_the_version_and_runs_nothing_of_the_package(self, npm: Path, tmp_path: Path) -> None:
        self.write(npm, f'echo "$@" > {tmp_path}/arguments; touch "$(pwd)/some-postgres-15.1.0.tgz"')
        (tmp_path / "aside").mkdir()
        fetched = packages.npm_pack(Package("@some/postgres", "15.1.0", ""), tmp_path / "aside")
        assert fetched == tmp_path / "aside" / "some-postgres-15.1.0.tgz"
        arguments = (tmp_path / "arguments").read_text().split()
        assert arguments[:3] == ["pack", "@some/postgres@15.1.0", "--ignore-scripts"]
        assert not [argument for argument in arguments if "registry" in argument]

    @pytest.mark.process
    def test_says_what_npm_said(self, npm: Path, tmp_path: Path) -> None:
        self.write(npm, "echo 'npm error network is unreachable'; exit 1")
        with pytest.raises(NotFetchedError, match="npm failed: npm error network is unreachable"):
            packages.npm_pack(Package("@some/postgres", "15.1.0", ""), tmp_path)

    @pytest.mark.process
    def test_that_takes_too_long_is_given_up(self, npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write(npm, "exec sleep 60")
        monkeypatch.setattr(fetching, "LIMIT", 0.1)
        with pytest.raises(NotFetchedError, match="npm took more than"):
            packages.npm_pack(Package("@some/postgres", "15.1.0", ""), tmp_path)


def test_an_unknown_machine_has_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(NotFetchedError, match=r"no package with PostgreSQL 15 is known for .* on riscv64"):
        package_for(15)


def test_every_supported_version_is_in_a_wheel_or_in_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    of_wheels = {16, 18}
    for major in {*range(OLDEST_MAJOR, NEWEST_MAJOR + 1)} - of_wheels:
        assert package_for(major).version.startswith(f"{major}.")


def test_digests_are_whole() -> None:
    for package in packages.PACKAGES.values():
        assert len(base64.b64decode(package.digest, validate=True)) == 64
