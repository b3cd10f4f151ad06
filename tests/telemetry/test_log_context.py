"""The message in work as context of log records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest

from headrace import App
from headrace.runtime.log_context import FIELDS, LogContext, in_work
from tests.runtime.running import running
from tests.telemetry.recorded import Recorded, id_of, trace_of

logger = logging.getLogger("shop")


class Keeping(logging.Handler):
    """Keeps what the filter has added to each record, by the record's message."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, Any]] = {}
        self.addFilter(LogContext())

    def emit(self, record: logging.LogRecord) -> None:
        self.kept[record.getMessage()] = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}


@pytest.fixture
def log() -> Iterator[Keeping]:
    keeping = Keeping()
    logger.addHandler(keeping)
    logger.setLevel(logging.INFO)
    yield keeping
    logger.removeHandler(keeping)
    logger.setLevel(logging.NOTSET)


@pytest.mark.asyncio
async def test_a_record_from_below_a_handler_names_its_message(dsn: str, log: Keeping) -> None:
    app = App(dsn, streams=["orders"])

    def deep() -> None:
        logger.info("deep")

    @app.consumer("orders")
    async def on_the_loop(number: int) -> None:
        logger.info("async")
        await anyio.to_thread.run_sync(deep)

    @app.consumer("orders")
    def in_a_thread(number: int) -> None:
        logger.info("thread")

    async with running(app):
        await app.publish("orders", "de.7", 1)
        await app.idle()
    message = {"stream": "orders", "key": "de.7", "seq": 1, "attempt": 1}
    assert log.kept == {
        "async": {**message, "consumer": "on_the_loop"},
        "deep": {**message, "consumer": "on_the_loop"},
        "thread": {**message, "consumer": "in_a_thread"},
    }


@pytest.mark.asyncio
async def test_a_record_from_inside_a_span_names_the_span(dsn: str, log: Keeping) -> None:
    recorded = Recorded(metrics=False)
    app = App(dsn, streams=["orders"], telemetry=recorded.telemetry)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        logger.info("here")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
    span = recorded.span("process orders")
    assert log.kept["here"]["trace_id"] == f"{trace_of(span):032x}"
    assert log.kept["here"]["span_id"] == f"{id_of(span):016x}"


def test_a_record_from_elsewhere_is_left_as_it_is(log: Keeping) -> None:
    logger.info("elsewhere")
    assert log.kept == {"elsewhere": {}}
    assert in_work() == {}


@pytest.mark.asyncio
async def test_fields_that_a_record_has_already_are_kept(dsn: str, log: Keeping) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship(number: int) -> None:
        logger.info("own", extra={"key": "mine"})

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
    assert log.kept["own"]["key"] == "mine"
    assert log.kept["own"]["seq"] == 1
