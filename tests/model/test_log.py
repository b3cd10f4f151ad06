"""Log records as events with fields."""

from __future__ import annotations

import logging

import pytest

from headrace.model.log import Log
from tests.support.logs import logged

pytestmark = pytest.mark.unit


def test_a_record_has_its_fields_as_attributes_and_in_its_message(caplog: pytest.LogCaptureFixture) -> None:
    Log("headrace").warning("leases lost", consumer="ship", leases=3, wait=0.5, reason=None, hint="raise ack_wait")
    (record,) = logged(caplog, "leases lost", consumer="ship", leases=3)
    assert record.getMessage() == 'leases lost: consumer=ship leases=3 wait=0.5 hint="raise ack_wait"'
    assert record.filename == "test_log.py"
    assert not hasattr(record, "reason")


def test_an_event_without_fields_is_its_message(caplog: pytest.LogCaptureFixture) -> None:
    Log("headrace").error("stopped", exc_info=ValueError("no"))
    (record,) = logged(caplog, "stopped")
    assert (record.getMessage(), record.levelno) == ("stopped", logging.ERROR)
    assert record.exc_info is not None


def test_a_record_below_the_level_costs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.INFO, "headrace")
    Log("headrace").debug("scaled", state=Costly())
    assert logged(caplog, "scaled") == []
