"""A plugin of pytest: all databases of the run have functions with gates, `pytest -p tests.schedules.gated tests/store`.

No session holds a gate, so every test must pass unchanged.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.schedules import gate, rewrite
from tests.support import servers

_NAME = "headrace_template_gated"
_plain = servers.ensure_template


def pytest_configure(config: pytest.Config) -> None:
    servers.ensure_template = _gated_template


def _gated_template(server_dsn: str) -> str:
    template = _plain(server_dsn)
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(46000)")
        if connection.execute("select from pg_database where datname = %s", (_NAME,)).fetchone():
            return _NAME
        connection.execute(f"create database {_NAME}_new template {template}".encode())
        with psycopg.connect(servers.on_server(server_dsn, f"{_NAME}_new"), autocommit=True) as inside:
            gate.install(inside)
            gate.rewrite_functions(inside, rewrite.always)
        connection.execute(f"alter database {_NAME}_new rename to {_NAME}".encode())
    return _NAME
