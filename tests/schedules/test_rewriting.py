"""Gates between statements change nothing while they are open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules import gate, rewrite

ROOT = Path(__file__).parents[2]
QUICK = ("test_lease_fresh.py", "test_settle.py", "test_transactions.py", "test_order.py", "test_replay.py")

# What may stand in a statement and contain semicolons and words that end nothing.
PARTS = st.sampled_from([
    "x", "'a;b'", "E'it\\'s; begin'", '"a;b"', "$$; begin declare $$", "$q$ $$;$$ $q$", "(select 1; )", "-- ; begin\n",
    "/* ; declare */", "a[1]", "''", "'it''s;'", "case when y then 1 end",
])  # fmt: skip
STATEMENTS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: " y := " + " ".join(parts) + ";")


@given(st.lists(STATEMENTS, max_size=6), st.lists(STATEMENTS, max_size=3), st.booleans())
def test_each_statement_is_one_piece_and_nothing_is_lost(
    statements: list[str], declarations: list[str], semicolon: bool
) -> None:
    declared = "declare " + "".join(declarations) if declarations else ""
    body = f"{declared}\nbegin{''.join(statements)}\nend{';' if semicolon else ''} "
    found = list(rewrite.pieces(body))
    assert "".join(piece.text for piece in found) == body
    assert [piece.text for piece in found if piece.gate and piece.text.startswith(" y")] == statements
    gated = rewrite.with_gates(body, rewrite.always)
    assert gated.replace(rewrite.GATE, "") == body
    assert gated.count(rewrite.GATE) == len(statements) + 1


def test_a_nested_block_declares_its_own_variables() -> None:
    body = "begin a; declare b int := 1; c int; begin d; end; e; end"
    assert rewrite.with_gates(body, rewrite.always).split(rewrite.GATE) == [
        "begin", " a;", " declare b int := 1; c int; begin", " d;", " end;", " e;", " end"
    ]  # fmt: skip


def test_no_gate_stands_before_get_diagnostics() -> None:
    assert rewrite.GATE + " get" not in rewrite.with_gates(
        "begin a; get diagnostics n = row_count; end", rewrite.always
    )


def test_only_statements_that_others_can_tell_get_a_gate() -> None:
    shared = rewrite.Shared({"leases"}, {"held": "select from headrace_internal.leases", "plus": "select 1"})
    assert [
        shared(text)
        for text in (
            "delete from headrace_internal.leases;",
            "v := headrace_internal.held();",
            "v := headrace_internal.plus();",
            "v := row(1)::headrace_internal.leases;",
            "perform pg_advisory_xact_lock(1, 2);",
            "v := 1; -- from headrace_internal.leases",
        )
    ] == [True, True, False, False, True, False]


def test_every_function_can_be_rewritten(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        gate.install(connection)
        assert gate.rewrite_functions(connection, rewrite.always) > 2000


def _run_store(*paths: str) -> None:
    # Lease ids have no random part where the gates are, see gate.sql.
    random_ids = "tests/store/test_settle.py::test_a_lease_id_that_a_crash_lost_is_not_handed_out_again"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.schedules.gated", "--deselect", random_ids, *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.process
@pytest.mark.long
def test_the_tests_of_the_store_pass_with_open_gates() -> None:
    _run_store(*(f"tests/store/{name}" for name in QUICK))
