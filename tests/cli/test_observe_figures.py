"""The figures of `headrace observe`, and their fit into a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from headrace.admin.live.reading import ConsumerFigures, StreamFigures
from headrace.admin.live.rows import consumer_row
from headrace.cli.main import call
from headrace.cli.observe.display.columns import fit_columns
from headrace.cli.observe.display.formats import (
    fit_cell,
    format_bytes,
    format_count,
    format_rate,
    sparkline,
)
from headrace.cli.observe.display.source_columns import SOURCES
from headrace.cli.observe.display.tables import CONSUMERS, PROCESSES, STREAMS
from headrace.cli.observe.live_app import MIN_PAUSE_RATIO, pause_after
from headrace.cli.options.times import roughly
from headrace.flow.observed import SAMPLES_KEPT, TREND_SAMPLES, Samples, is_growing, reports_by_consumer
from headrace.model.records import ConsumerAtWork, WorkerInfo
from headrace.model.watching.live import ConsumerRow
from headrace.model.watching.reasons import RATE_LIMITED
from headrace.store import CatalogConsumer, LiveCounts

START = datetime(2026, 1, 1, tzinfo=UTC)


def _reports(*reports: ConsumerAtWork, gone: bool = False) -> WorkerInfo:
    return WorkerInfo(
        id="w",
        host="h",
        pid=1,
        kind="run",
        version="1",
        started_at=START,
        seen_at=START,
        gone=gone,
        consumers=[*reports],
    )


def _consumer(
    *moves: tuple[float, int], workers: Sequence[WorkerInfo] = (), name: str = "ship", last_seq: int = 0, **figures: Any
) -> ConsumerRow:
    """The row of a consumer that had these positions at these seconds."""
    stream, found = StreamFigures(), ConsumerFigures()
    for field, value in figures.items():
        setattr(found, field, value)
    for seconds, position in moves:
        found.position = position
        found.samples.add(
            START + timedelta(seconds=seconds), position - found.held - found.waiting, last_seq - position
        )
    stream.add(START, last_seq)
    info = CatalogConsumer(number=1, id="c", stream=1, name=name, push=False, filtered=False)
    work = reports_by_consumer(workers).get(("orders", name), [])
    return consumer_row(info, "orders", stream, found, work, START, None)


def test_a_rate_is_how_a_count_moved_over_the_last_looks() -> None:
    samples, rates = Samples(), []
    for second, seq in ((0, 100), (1, 110), (3, 150), (4, 153), (5, 153)):
        samples.add(START + timedelta(seconds=second), seq)
        rates.append(samples.rate)
    assert rates == [None, 10, 15, 11, pytest.approx(23 / 3)]


def test_a_seek_back_is_no_pace() -> None:
    assert _consumer((0, 500), (1, 0)).finish_rate == 0


def test_no_more_than_a_minute_is_remembered() -> None:
    samples = Samples()
    for second in range(3 * SAMPLES_KEPT):
        samples.add(START + timedelta(seconds=second), second)
    assert len(samples.rates) == SAMPLES_KEPT


@pytest.mark.parametrize(
    ("lags", "grows"),
    [
        ([0] * 2 * TREND_SAMPLES, False),
        ([100] * TREND_SAMPLES + [200] * TREND_SAMPLES, True),
        ([100_000] * TREND_SAMPLES + [100_100] * TREND_SAMPLES, False),
        ([0] * TREND_SAMPLES + [9] * TREND_SAMPLES, False),
        ([1000] * TREND_SAMPLES, False),
        ([500] * TREND_SAMPLES + [100] * TREND_SAMPLES, False),
    ],
)
def test_a_lag_grows_when_it_is_clearly_more_than_a_moment_ago(lags: list[int], grows: bool) -> None:
    assert is_growing(lags) is grows


@pytest.mark.parametrize(
    ("figures", "reports", "state"),
    [
        ({"paused": True, "counts": LiveCounts(blocked=1)}, [], "paused"),
        (
            {"counts": LiveCounts(blocked=1)},
            [ConsumerAtWork(stream="orders", name="ship", breaker="half-open")],
            "breaker",
        ),
        ({"counts": LiveCounts(blocked=1)}, [], "blocked"),
        ({}, [], "unattended"),
        ({"lease": (1, 1, 1)}, [], ""),
        ({}, [ConsumerAtWork(stream="orders", name="ship", actors=1)], ""),
        ({}, [ConsumerAtWork(stream="orders", name="bill", actors=1)], "unattended"),
    ],
)
def test_the_state_is_what_is_most_worth_knowing(figures: Any, reports: list[ConsumerAtWork], state: str) -> None:
    assert _consumer((0, 0), last_seq=10, workers=[_reports(*reports)], **figures).state == state


def test_the_actors_of_all_processes_count_but_not_of_those_that_are_gone() -> None:
    one, two = (ConsumerAtWork(stream="orders", name="ship", actors=n, busy=n - 1, reason=f"{n}") for n in (2, 5))
    row = _consumer((0, 0), workers=[_reports(one), _reports(two), _reports(two, gone=True)])
    assert (row.actors, row.busy_actors, row.reason) == (7, 5, "5")


@given(st.floats(0, 1e15))
def test_a_count_takes_six_columns_at_most(value: float) -> None:
    assert len(format_count(value)) <= 6
    assert len(format_rate(value)) <= 6


def test_figures_for_people() -> None:
    assert [*map(format_count, (0, 9876, 99_999, 100_000, 1_234_567, None))] == [
        "0",
        "9,876",
        "99,999",
        "100k",
        "1.23M",
        "",
    ]
    assert [*map(format_rate, (0, 0.01, 3.14, 9.97, 250.4, None))] == ["0", "<0.1", "3.1", "10", "250", ""]
    assert [*map(format_bytes, (0, 999, 1000, 81_920, 12_345_678))] == ["0 B", "999 B", "1 kB", "81.9 kB", "12.3 MB"]
    assert [*map(roughly, (0, 119, 120, 7200, 200_000))] == ["0s", "119s", "2m", "2h", "2d"]


@given(st.lists(st.floats(0, 1e9), max_size=80), st.integers(0, 60))
def test_a_sparkline_has_its_width_and_shows_the_latest(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == width
    assert len(line.strip()) == min(len(values), width)


@given(st.text(), st.integers(0, 40), st.booleans())
def test_a_cell_has_its_width_whatever_it_holds(text: str, width: int, right: bool) -> None:
    found = fit_cell(text, width, right=right)
    assert cell_len(found.plain) == width + 1
    assert found.plain.isprintable()


def test_a_cell_says_that_something_is_missing() -> None:
    assert fit_cell("orders", 4).plain == "ord… "
    assert fit_cell("日本語", 4).plain == "日 … "
    assert fit_cell(Text("7"), 3, right=True).plain == "  7 "


@pytest.mark.parametrize("columns", [STREAMS, CONSUMERS, PROCESSES, SOURCES])
@given(width=st.integers(79, 400))
def test_the_columns_fit_into_any_terminal_from_eighty_on(columns: Any, width: int) -> None:
    assert sum(each + 1 for _, each in fit_columns(columns, width)) <= width


def test_less_important_columns_are_dropped_first() -> None:
    shown = [column.label for column, _ in fit_columns(CONSUMERS, 79)]
    assert shown == ["stream", "consumer", "lag", "done/s", "dead", "state", "reason"], (
        "the state says if it is blocked"
    )


def test_a_consumer_that_its_rate_limit_holds_back_is_healthy() -> None:
    def state(reason: str) -> str:
        samples = Samples()
        for second in range(3 * TREND_SAMPLES):
            samples.add(START + timedelta(seconds=second), second, 100 * second)
        report = ConsumerAtWork(stream="orders", name="ship", actors=1, reason=reason)
        return _consumer(lease=(1, 1, 1), samples=samples, last_seq=10, workers=[_reports(report)]).state

    assert state("all are busy") == "growing"
    assert state(f"{RATE_LIMITED}50/s") == ""


def test_names_grow_as_far_as_they_need() -> None:
    lines = [_consumer(name="a" * 25)]
    widths = {column.label: width for column, width in fit_columns(CONSUMERS, 200, lines)}
    assert (widths["consumer"], widths["stream"]) == (25, 10)


def test_a_store_that_is_slow_is_asked_less_often() -> None:
    assert pause_after(1.0, 0.01) == 0.99
    assert pause_after(1.0, 2.0) == 2.0 * MIN_PAUSE_RATIO


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--interval", "1ms"], "200ms to 1h"),
        (["--interval", "often"], "is not a duration"),
        (["--as-curl"], "--as-curl can print only one request"),
    ],
)
def test_invalid_options_are_refused(capfd: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert call(["observe", *words]) == 64
    assert says in capfd.readouterr().err
