"""A planted bug is refused if the text that it replaces is gone."""

from __future__ import annotations

import dataclasses

import psycopg
import pytest

from tests.schedules.planted import BUGS, Bug, plant


@pytest.fixture
def connection(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn)


def test_every_planted_bug_finds_its_text(connection: psycopg.Connection) -> None:
    with connection:
        for bug in BUGS:
            with connection.transaction(force_rollback=True):
                plant(bug, connection)


def test_a_bug_whose_text_is_gone_is_refused(connection: psycopg.Connection) -> None:
    bug: Bug = dataclasses.replace(BUGS[0], old="no such text")
    with connection, pytest.raises(LookupError, match="which is 0 times in settle_outcomes"):
        plant(bug, connection)
