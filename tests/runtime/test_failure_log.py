"""The log records of failures."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from headrace.flow.in_flight import Lease
from headrace.model.outcomes import Failure
from headrace.runtime.execution.failure_log import FailureLog
from headrace.runtime.log_burst import BURST
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from tests.support.logs import logged


def message(seq: int) -> Message:
    return Message(
        "orders", "ship", f"orders.{seq}", seq, 1, 0, "1", None, Lease(1, [seq], [seq], 0.0), seq, cast(Any, None)
    )


def test_a_failure_is_logged_with_its_message_and_its_error_and_the_last_one_by_its_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FailureLog(lambda: 0.0)
    with caplog.at_level(logging.WARNING, "headrace"):
        error = ValueError("no")
        log.failed(message(7), Failure("retry", 1.5, "ValueError: no", "Traceback …", "ValueError", error))
        log.failed(message(8), Failure("reject", None, "no items"))
        log.failed(message(9), Failure("retry", 1.5, "ValueError: no"), max_deliver=1)
    assert caplog.messages == [
        'message failed: stream=orders consumer=ship key=orders.7 seq=7 attempt=1 retry_in=1.5 error_type=ValueError error="ValueError: no"',
    ]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_thousands_of_failures_are_counted_and_not_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = FailureLog(lambda: now)
    with caplog.at_level(logging.WARNING, "headrace"):
        for seq in range(5000):
            log.failed(message(seq), Failure("retry", 1.0, "no"))
        assert len(caplog.messages) == BURST
        now = 1.0
        log.failed(message(5000), Failure("retry", 1.0, "no"))
    assert logged(caplog, "more messages failed", stream="orders", consumer="ship", messages=5000 - BURST) == [
        caplog.records[BURST]
    ]
    assert len(caplog.messages) == BURST + 2


def test_a_printed_message_names_its_delivery_and_shows_no_payload() -> None:
    assert repr(message(7)) == "<Message orders/ship seq=7 key='orders.7' attempt=1>"
    assert repr(Batch("orders", "ship", (message(7),))) == "<Batch orders/ship messages=1>"
