"""Several processes share one server, which runs until the last of them ends, in whatever way they end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import pytest

from headrace.embedded import EmbeddedPostgres
from headrace.embedded.paths import find_server_dir
from headrace.embedded.postmaster import wait_until_down

from .conftest import ask

FORGETS_TO_RELEASE = """
import sys
from headrace.embedded import EmbeddedPostgres
tenancy = EmbeddedPostgres(sys.argv[1]).acquire()
print(tenancy.url, flush=True)
sys.stdin.readline()
"""

FORKS = """
import os, sys
from headrace.embedded import EmbeddedPostgres
tenancy = EmbeddedPostgres(sys.argv[1]).acquire()
reading, writing = os.pipe()
if (child := os.fork()) == 0:
    os.close(writing)
    tenancy.release()  # not the child's to release
    os.read(reading, 1)
    os._exit(0)
print(EmbeddedPostgres(sys.argv[1]).status().running, flush=True)
tenancy.release()
print(EmbeddedPostgres(sys.argv[1]).status().running, flush=True)
os.close(writing)
os.waitpid(child, 0)
"""


def commands() -> list[str]:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_last_to_leave_stops_the_server(pg, user):
    first, second = user(pg.data_dir), user(pg.data_dir)
    assert first.url() == second.url() == pg.url()
    assert pg.status().users == tuple(sorted([first.pid, second.pid]))
    assert first.leave() == 0
    assert pg.status().running
    assert pg.status().users == (second.pid,)
    assert second.leave() == 0
    assert not pg.status().running


def test_two_tenancies_of_one_process_count_as_two(pg):
    with pg.acquire():
        pg.acquire().release()
        assert pg.status().running
        assert pg.status().users == (os.getpid(),)
    assert not pg.status().running


def test_releasing_twice_is_releasing_once(pg):
    with pg.acquire():
        twice = pg.acquire()
        twice.release()
        twice.release()
        assert pg.status().running


def test_killing_a_user_leaves_the_server_to_the_others(pg, user):
    starter, other = user(pg.data_dir), None
    starter.url()
    other = user(pg.data_dir)
    url = other.url()
    starter.kill()
    assert ask(url, "select 1") == 1
    assert pg.status().users == (other.pid,)
    other.leave()
    assert not pg.status().running


def test_the_server_of_a_killed_last_user_is_stopped(pg, user):
    alone = user(pg.data_dir)
    alone.url()
    alone.kill()
    assert wait_until_down(find_server_dir(pg.data_dir), 60.0)
    assert not any(find_server_dir(pg.data_dir).users.iterdir())
    assert "fast shutdown" in pg.status().log.read_text()


def test_a_killed_user_leaves_an_explicitly_started_server_running(pg, user):
    pg.start()
    alone = user(pg.data_dir)
    alone.url()
    alone.kill()
    pg.stop_if_unused()  # as its survivor does
    assert pg.status().running


def test_nothing_outlives_a_user_that_leaves(pg, user):
    alone = user(pg.data_dir)
    alone.url()
    assert any(str(pg.data_dir) in command for command in commands())
    assert alone.leave() == 0
    while any(str(pg.data_dir) in command for command in commands()):
        pass


def test_a_process_that_forgets_to_release_leaves_at_its_end(pg, user):
    forgetful = user(pg.data_dir, FORGETS_TO_RELEASE)
    assert ask(forgetful.url(), "select 1") == 1
    assert forgetful.leave() == 0
    assert not pg.status().running


def test_a_forked_child_is_not_a_user(pg, user):
    parent = user(pg.data_dir, FORKS)
    assert parent.process.communicate(timeout=30)[0].split() == ["True", "False"]
    assert parent.process.returncode == 0


def test_an_explicit_start_outlasts_its_users(pg):
    pg.start()
    pg.acquire().release()
    assert pg.status().running
    assert pg.status().kept
    pg.stop()
    assert not pg.status().running
    pg.acquire().release()
    assert not pg.status().running


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(pg, user):
    starter = user(pg.data_dir, start_new_session=True)
    url = starter.url()
    with pg.acquire():
        os.killpg(starter.pid, signal.SIGINT)
        starter.process.communicate(timeout=30)
        assert ask(url, "select 1") == 1


def test_many_that_come_at_once_find_one_server(fresh, user):
    crowd = [user(fresh.data_dir, stderr=subprocess.PIPE) for _ in range(4)]
    assert [member.url() for member in crowd] == [fresh.url()] * 4
    assert len(fresh.status().users) == 4
    log = fresh.status().log.read_text()
    assert log.count("starting PostgreSQL") == 1
    assert [member.leave() for member in crowd] == [0] * 4
    assert not fresh.status().running


def test_many_that_come_and_go_leave_nothing_running(pg):
    # The processes of a spawned pool acquire and release in every order, and each finds a running server.
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        answers = pool.map(come_and_go, [pg.data_dir] * 12, chunksize=1)
    assert answers == [1] * 12
    assert not pg.status().running


def come_and_go(data_dir: Path) -> int:
    with EmbeddedPostgres(data_dir).acquire() as handle:
        return int(ask(handle.url, "select 1"))


def test_a_starter_that_is_killed_at_any_moment_is_no_obstacle(fresh, user):
    for delay in (0.1, 0.3, 0.5):
        killed = user(fresh.data_dir)
        with contextlib.suppress(subprocess.TimeoutExpired):
            killed.process.wait(delay)
        killed.kill()
    with fresh.acquire() as handle:
        assert ask(handle.url, "select current_database()") == "headrace"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_data_survives_every_stop(pg, mode):
    with pg.acquire() as handle:
        ask(handle.url, f"create table {mode} as select 42 as answer")
        pg.stop(mode)
        assert not pg.status().running
    with pg.acquire() as handle:
        assert ask(handle.url, f"select answer from {mode}") == 42
