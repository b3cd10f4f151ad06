"""Repacks of Headrace's tables in the databases of running tests, on PostgreSQL 19 or later:

    make test-postgres VERSION=19 REPACK=1

A separate session runs `REPACK (CONCURRENTLY)` on one table after the other, in random order, as long as the test has its
database. A test that fails with it and passes without reads a table that was exchanged since its snapshot. Tests that fail
for another reason are in `UNFIT`, and are skipped. The last lines of the run say how many repacks there were.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support import servers

FIRST_MAJOR = 19
"""The first version that has the command."""

LOCK_TIMEOUT = "200ms"
"""How long a repack may wait for its last lock. All other sessions wait as long."""

TABLES = """
    select oid::regclass::text from pg_class
    where relkind = 'r' and relpersistence = 'p' and relnamespace::regnamespace::text like 'headrace%'"""

UNFIT = {
    "test_a_call_that_uses_a_stream_while_it_is_deleted_reports_that_it_is_gone": "counts the sessions that wait for a lock",
    "test_a_copy_of_a_database_that_takes_its_place_has_a_history_of_its_own": "copies a database without other sessions",
    "test_a_role_that_the_database_sets_and_that_lacks_privileges_is_said": "changes rights, which a repack may refuse",
    "test_an_ack_that_commits_between_two_reads_of_a_lease_call_loses_nothing": "needs a plan that is kept, and a repack ends it",
    "test_dump_and_restore": "dumps, which must not be done beside a repack",
    "test_the_number_in_a_streams_row_is_seldom_written": "counts writes of rows, and a repack writes them anew",
}
"""Tests and files that a repack disturbs, with what they do."""

_outcomes: Counter[str] = Counter()


class Repacks:
    """The repacks of one database.

    Args:
        dsn: the database's URL, of its superuser.
    """

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True, application_name="repacks of tests")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the repack that runs, and close the connection."""
        self._ended.set()
        while self._thread.is_alive():
            self._connection.cancel()  # in vain if the statement has not begun yet
            self._thread.join(0.1)
        self._connection.close()

    def _run(self) -> None:
        try:
            order = random.Random()  # Hypothesis watches the common one
            self._connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT}'")
            while not self._ended.is_set():
                tables = [name for (name,) in self._connection.execute(TABLES)]
                for table in order.sample(tables, len(tables)):
                    if self._ended.is_set():
                        break
                    self._repack(table)
                self._ended.wait(0.05)
        except psycopg.Error as error:  # the test has ended the connection, or stopped the server
            _outcomes[type(error).__name__] += 1

    def _repack(self, table: str) -> None:
        try:
            self._connection.execute(f"repack (concurrently) {table}")
            _outcomes["done"] += 1
        except psycopg.Error as error:
            if self._connection.broken:
                raise
            _outcomes[type(error).__name__] += 1


def pytest_configure() -> None:
    """Repack the tables of each database that is made for a test."""
    clone = servers.clone

    @contextmanager
    def repacked(server_dsn: str, template: str | None) -> Iterator[str]:
        with clone(server_dsn, template) as dsn:
            repacks = Repacks(dsn)
            repacks.begin()
            try:
                yield dsn
            finally:
                repacks.end()

    servers.clone = repacked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what a repack disturbs."""
    for item in items:
        for name in {getattr(item, "originalname", item.name), item.path.stem} & UNFIT.keys():
            item.add_marker(pytest.mark.skip(f"not beside a repack, since it {UNFIT[name]}"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a process of pytest-xdist to the one that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["repacks"] = dict(_outcomes)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a process."""
    _outcomes.update(getattr(node, "workeroutput", {}).get("repacks", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what became of the repacks."""
    counts = ", ".join(f"{outcome} {count}" for outcome, count in _outcomes.most_common())
    terminalreporter.write_line(f"REPACK (CONCURRENTLY): {counts or 'none'}")
