"""The embedded server: its setup, its status, and its recovery from failures."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from headrace.embedded import EmbeddedPostgres, postmaster
from headrace.embedded.binaries import find_installation
from headrace.embedded.os_user import os_user_for
from headrace.embedded.paths import LOG_LIMIT, LOG_REST, find_server_dir, trim_log
from headrace.model.errors import EmbeddedPostgresError
from tests.support.programs import of_other_wheel

from .conftest import ask


@pytest.fixture
def running(pg):
    """The module's server, running, with a handle on its files."""
    with pg.acquire():
        yield pg


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("wal_level", "logical"),
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("jit", "off"),
        ("TimeZone", "UTC"),
        ("server_encoding", "UTF8"),
        ("listen_addresses", ""),
        ("max_connections", "200"),
    ],
)
def test_settings(running, setting, value):
    assert ask(running.url(), f"show {setting}") == value


def test_status_reports_what_runs(running):
    status = running.status()
    assert status.running
    assert status.users == (os.getpid(),)
    assert status.port is None
    assert status.version == ask(running.url(), "show server_version").split()[0]
    assert ask(running.url(), "show data_directory") == str(status.cluster_dir)
    os.kill(status.pid, 0)


def test_status_of_nothing_makes_nothing(tmp_path):
    status = EmbeddedPostgres(tmp_path / "nothing").status()
    assert not status.running
    assert status.users == ()
    assert not status.data_dir.exists()
    EmbeddedPostgres(tmp_path / "nothing").stop()
    assert not status.data_dir.exists()


def test_the_url_is_the_same_before_and_after_a_start(pg):
    before = pg.url()
    with pg.acquire() as handle:
        assert before == handle.url == pg.status().url


def test_the_url_suits_another_database_too(running):
    assert ask(running.url("postgres"), "select current_database()") == "postgres"


def test_psql_takes_the_url(running):
    command = [running.program("psql"), running.url(), "-Atc", "select current_user"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "headrace"


def test_the_environment_of_the_client_does_not_lead_it_astray(running, monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    assert ask(running.url(), "select 1") == 1


def test_the_socket_is_for_the_owner_alone(running):
    directory = parse_qs(urlsplit(running.url()).query)["host"][0]
    assert os.stat(directory).st_mode & 0o077 == 0


def test_own_settings_win(pg):
    custom = EmbeddedPostgres(pg.data_dir, settings={"work_mem": "7MB", "application_name": "it's"})
    with custom.acquire() as handle:
        assert ask(handle.url, "show work_mem") == "7MB"
        assert ask(handle.url, "select reset_val from pg_settings where name = 'application_name'") == "it's"


def test_a_port_is_opened_with_a_password(pg):
    with_port = EmbeddedPostgres(pg.data_dir, port=free_port())
    with with_port.acquire() as handle:
        assert with_port.status().port == with_port.port
        assert ask(handle.url, "select 1") == 1
        parts = urlsplit(handle.url)
        assert parts.password
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(handle.url.replace(parts.password, "guessed"), "select 1")
        assert parts.password not in repr(with_port.status()) + repr(handle)
        with EmbeddedPostgres(pg.data_dir).acquire() as by_socket:
            assert ask(by_socket.url, "select 1") == 1


def test_data_of_other_programs_of_the_same_version_are_opened(fresh, monkeypatch):
    """Even after a crash, and with an index in the order of the database's collation."""
    other = of_other_wheel(18)
    monkeypatch.setenv("HEADRACE_PG_BIN", str(other.bin))
    with fresh.acquire() as handle:
        assert ask(handle.url, "show server_version").split()[0] == other.version
        ask(handle.url, "create table words as select unnest(array['ä', 'z', 'A', 'a', 'Ω']) as word")
        ask(handle.url, "create unique index words_in_order on words (word, upper(word))")
        crash(fresh)
    monkeypatch.delenv("HEADRACE_PG_BIN")
    with fresh.acquire() as handle:
        assert ask(handle.url, "show server_version").split()[0] == find_installation().version
        assert ask(handle.url, "select string_agg(word, '' order by word) from words") == "AazäΩ"


@pytest.mark.parametrize("name", ["pgoutput", "test_decoding"])
def test_changes_can_be_decoded(running, name):
    """`pgoutput` is what captures read."""
    assert ask(running.url(), f"select slot_name from pg_create_logical_replication_slot('of_{name}', '{name}')")
    ask(running.url(), f"select pg_drop_replication_slot('of_{name}')")


def test_a_restart_recovers_from_a_crash(running):
    ask(running.url(), "create table crashed as select 42 as answer")
    before = running.status().pid
    running.restart("immediate")
    assert running.status().pid != before
    assert ask(running.url(), "select answer from crashed") == 42


def test_a_killed_server_is_brought_up_by_the_next_to_come(running):
    ask(running.url(), "create table killed as select 42 as answer")
    crash(running)
    with running.acquire() as handle:
        assert ask(handle.url, "select answer from killed") == 42


def test_a_process_of_a_killed_server_that_hangs_is_named(running):
    hasty = EmbeddedPostgres(running.data_dir)
    hasty._options = replace(hasty._options, orphan_limit=0.1)
    processes = postmaster.processes(find_server_dir(running.data_dir))
    orphan = next(pid for pid in processes if pid != running.status().pid)
    os.kill(orphan, signal.SIGSTOP)
    try:
        crash(running)
        with pytest.raises(EmbeddedPostgresError, match=f"killed Postgres still run on .*{orphan}"):
            hasty.acquire()
    finally:
        os.kill(orphan, signal.SIGCONT)
    with running.acquire() as handle:
        assert ask(handle.url, "select 1") == 1


def test_a_process_id_that_another_program_has_now_is_no_obstacle(pg):
    with pg.acquire():
        crash(pg)
    server_dir = find_server_dir(pg.data_dir)
    assert postmaster.wait_until_down(server_dir, 10)
    pid_file = server_dir.cluster / "postmaster.pid"
    os_user = os_user_for(server_dir.cluster)
    # It has to be a process of the server's user, because Postgres itself detects those of other users.
    identity = {} if os_user.is_current else {"user": os_user.uid, "group": os_user.gid, "extra_groups": ()}
    with subprocess.Popen(["sleep", "60"], **identity) as innocent:
        lines = pid_file.read_text().split("\n")
        pid_file.write_text("\n".join([str(innocent.pid), *lines[1:]]))
        with pg.acquire() as handle:
            assert ask(handle.url, "select 1") == 1
        assert innocent.poll() is None
        innocent.kill()


def test_an_empty_pid_file_is_no_obstacle(pg):
    (find_server_dir(pg.data_dir).cluster / "postmaster.pid").touch()
    with pg.acquire() as handle:
        assert ask(handle.url, "select 1") == 1


def test_a_cleaned_tmp_is_no_obstacle(running):
    shutil.rmtree(parse_qs(urlsplit(running.url()).query)["host"][0])
    assert not running.status().running
    with running.acquire() as handle:
        assert ask(handle.url, "select 1") == 1


def test_data_half_made_is_made_anew(fresh):
    fresh.data_dir.mkdir()
    (fresh.data_dir / "new" / "cluster").mkdir(parents=True)
    (fresh.data_dir / "new" / "cluster" / "PG_VERSION").write_text("18\n")
    with fresh.acquire() as handle:
        assert ask(handle.url, "select 1") == 1


def test_destroying_leaves_what_is_not_ours(fresh):
    fresh.data_dir.mkdir()
    (fresh.data_dir / "letter").write_text("from home")
    with fresh.acquire():
        elsewhere = fresh.status().cluster_dir
        fresh.destroy()
    assert [path.name for path in fresh.data_dir.iterdir()] == ["letter"]
    assert not elsewhere.exists()


def test_the_log_is_kept_small(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * LOG_LIMIT + b"the end")
    trim_log(log)
    assert log.stat().st_size == 0
    kept = (tmp_path / "server.log.old").read_bytes()
    assert len(kept) == LOG_REST
    assert kept.endswith(b"the end")


def crash(pg: EmbeddedPostgres) -> None:
    """Kill the server and wait for its end. Its other processes may take a moment longer."""
    pid = pg.status().pid
    assert pid is not None
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([handle], [], [], 10)
    os.close(handle)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
