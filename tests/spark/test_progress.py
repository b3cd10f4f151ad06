"""The lag of streaming queries, from Spark's progress reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_spark.progress.lag import Lag, lags
from headrace_spark.progress.listener import LagListener, _Poller, report_lag
from tests.support.readers import Clock


def source(end: Any, latest: Any, rate: float | None = 2.0) -> Any:
    texts = [None if one is None else json.dumps(one) for one in (end, latest)]
    return SimpleNamespace(
        endOffset=texts[0], latestOffset=texts[1], inputRowsPerSecond=rate, processedRowsPerSecond=rate
    )


def several(**positions: int) -> dict[str, Any]:
    return {"streams": {name: {"stream": f"uid of {name}", "position": seq} for name, seq in positions.items()}}


def test_lag_is_what_lies_between_the_offsets() -> None:
    one = source({"stream": "u", "position": 7}, {"stream": "u", "position": 10, "name": "orders"})
    assert lags(one) == [Lag("orders", 7, 3, 2.0, 2.0)]
    # A stream that has just joined was not read yet. A checkpoint that is ahead has no lag.
    found = lags(source(several(b=5, c=9), several(a=4, b=5, c=8), rate=float("nan")))
    assert [(one.stream, one.position, one.lag, one.input_rate) for one in found] == [
        ("a", 0, 4, 0.0), ("b", 5, 0, 0.0), ("c", 9, 0, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("offset", [None, 17, "text", {"orders": {"0": 23}}, [1]])
def test_sources_of_other_kinds_are_passed_over(offset: Any) -> None:
    assert lags(source(offset, offset, rate=None)) == []


def test_a_query_is_logged_now_and_then_and_forgotten_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    listener = LagListener(10.0, clock=lambda: clock.now.timestamp())
    report = source(several(orders=1), several(orders=5))
    event: Any = SimpleNamespace(progress=SimpleNamespace(runId="r", id="i", name=None, sources=[report]))
    other: Any = SimpleNamespace(progress=SimpleNamespace(runId="x", id="x", name="x", sources=[source(None, None)]))
    with caplog.at_level("INFO", logger="headrace.spark"):
        for seconds in (0, 9, 1):
            clock.advance(seconds)
            listener.onQueryProgress(event)
            listener.onQueryProgress(other)
    assert len([record for record in caplog.records if record.message.startswith("streaming query")]) == 2
    [query] = listener.statistics()["queries"].values()
    assert (query["name"], query["streams"][0]["lag"]) == ("i", 4)
    listener.onQueryTerminated(SimpleNamespace(runId="r"))  # type: ignore[arg-type]
    assert listener.statistics() == {"queries": {}}


def test_the_lag_of_a_session_that_was_stopped_is_not_reported() -> None:
    """Such a session doesn't report the end of its queries."""
    context = SimpleNamespace(_jsc=object(), _gateway=None)
    listeners: list[LagListener] = []
    streams = SimpleNamespace(addListener=listeners.append, removeListener=listeners.remove)
    spark: Any = Weak(sparkContext=context, streams=streams)
    reports = [report_lag(spark, telemetry=False), report_lag(spark, telemetry=False)]
    progress = SimpleNamespace(runId="r", id="i", name=None, sources=[source(several(orders=1), several(orders=5))])
    for listener in listeners:
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    assert all(report.statistics()["queries"] for report in reports)
    reports[0].stop()
    assert reports[0].statistics() == {"queries": {}}
    assert reports[1].statistics()["queries"]
    context._jsc = None
    assert reports[1].statistics() == {"queries": {}}


class Weak(SimpleNamespace):
    """A session that can be the key of a weak dictionary."""

    __hash__ = object.__hash__


def test_the_lag_is_not_reported_while_a_connect_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = SimpleNamespace(
        runId="r", id="i", name=None, sources=[source(several(orders=1), several(orders=5))], timestamp="now"
    )
    queries, reported = [SimpleNamespace(runId="r", lastProgress=progress)], list[int]()

    class Server:
        """Answers once, then fails once, then answers again, then the session is stopped."""

        is_stopped = False

        @property
        def streams(self) -> Any:
            reported.append(len(listener.statistics()["queries"]))
            self.is_stopped = len(reported) == 4
            if len(reported) == 2:
                raise ConnectionError("no answer")
            return SimpleNamespace(active=queries)

    monkeypatch.setattr("headrace_spark.progress.listener._INTERVAL", 0.001)
    listener = LagListener(0.0)
    poller = _Poller(Server(), listener)
    poller._thread.join(60)
    poller.stop()
    assert reported == [0, 1, 0, 1]


def test_a_connect_server_is_asked_for_news_of_its_queries(caplog: pytest.LogCaptureFixture) -> None:
    report = source(several(orders=1), several(orders=5))
    progress = SimpleNamespace(runId="r", id="i", name=None, sources=[report], timestamp="2030-01-31T00:00:00Z")
    query = SimpleNamespace(runId="r", lastProgress=None)
    spark = SimpleNamespace(is_stopped=True, streams=SimpleNamespace(active=[query]))
    listener = LagListener(0.0)
    poller = _Poller(spark, listener)
    poller._ask()
    assert listener.statistics() == {"queries": {}}
    query.lastProgress = progress
    with caplog.at_level("INFO", logger="headrace.spark"):
        for _ in range(3):  # an idle query has the same report again
            poller._ask()
        assert len(caplog.records) == 1
        progress.timestamp = "2030-01-31T00:00:01Z"
        poller._ask()
    assert len(caplog.records) == 2
    assert listener.statistics()["queries"]["r"]["streams"][0]["lag"] == 4
    spark.streams.active = []
    poller._ask()
    assert listener.statistics() == {"queries": {}}
    poller.stop()
