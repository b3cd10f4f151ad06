"""Sessions that a scheduler starts, watches and stops, without a loop or threads."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

from psycopg import OperationalError, pq

Rows = list[list[str | None]]

_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class Failed(Exception):
    """A statement failed."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(state, message)
        self.state = state

    def __str__(self) -> str:
        return ": ".join(self.args)


class Session:
    """A connection whose statements run while the scheduler does something else."""

    def __init__(self, dsn: str) -> None:
        self._connection = pq.PGconn.connect(dsn.encode())
        if self._connection.status != pq.ConnStatus.OK:
            raise ConnectionError(self._connection.get_error_message())
        self._connection.notice_handler = self._noticed
        self.pid = self._connection.backend_pid
        self.gate: tuple[int, int] | None = None
        """The gate at which it stands, and the lock that it waits for there."""
        self._poll = select.poll()
        self._poll.register(self._connection.socket, select.POLLIN)
        self._results: list[Rows] = []
        self._failed: Failed | None = None
        self.running = False

    def send(self, sql: str) -> None:
        self._results, self._failed, self.running = [], None, True
        self._connection.send_query(sql.encode())

    def wait(self, seconds: float) -> bool:
        """Wait until it stops at a gate or has finished. Returns whether it has, within this time."""
        while self._advance():
            if not self._poll.poll(seconds * 1000):
                return False
            try:
                self._connection.consume_input()
            except OperationalError as error:
                self._failed, self.running = self._failed or Failed("57P01", str(error)), False
        return True

    def _advance(self) -> bool:
        """Take in what has arrived. Returns whether the session may still run."""
        while self.running and not self._connection.is_busy():
            result = self._connection.get_result()
            if result is None:
                self.running = False
            elif result.status in _FAILED:
                self._failed = Failed(*(_field(result, field) for field in _FIELDS))
            else:
                columns = range(result.nfields)
                rows = [[_value(result, row, column) for column in columns] for row in range(result.ntuples)]
                self._results.append(rows)
        return self.running and self.gate is None

    def results(self) -> list[Rows]:
        """Return the rows of each statement. Raises `Failed` if one has failed."""
        if self._failed:
            raise self._failed
        return self._results

    def execute(self, sql: str) -> list[Rows]:
        """Run statements, and wait for them."""
        self.send(sql)
        while not self.wait(60):
            raise TimeoutError(f"no answer within a minute: {sql[:200]}")
        return self.results()

    def value(self, sql: str) -> Any:
        return self.execute(sql)[-1][0][0]

    def sleeps(self) -> bool:
        """Whether the backend waits for anything, as Linux can tell without a query. True if that is unknown."""
        try:
            return (Path("/proc") / str(self.pid) / "stat").read_text().rpartition(")")[2].split()[0] == "S"
        except OSError:
            return True

    def wait_for_end(self) -> None:
        """Wait until the server has ended this connection."""
        while self.alive:
            if not self._poll.poll(60_000):
                raise TimeoutError("the server has not ended a connection within a minute")
            try:
                self._connection.consume_input()
            except OperationalError:
                return

    def close(self) -> None:
        self._connection.finish()

    @property
    def alive(self) -> bool:
        return self._connection.status == pq.ConnStatus.OK

    @property
    def in_transaction(self) -> bool:
        return self._connection.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    def _noticed(self, result: Any) -> None:
        word, *numbers = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY).split()
        if word == "gate":
            self.gate = (int(numbers[0]), int(numbers[1]))


_FIELDS = (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)


def _field(result: Any, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode()


def _value(result: Any, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else value.decode()
