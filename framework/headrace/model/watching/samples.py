"""Samples: figures of the past, for charts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SampleKind = Literal["total", "stream", "consumer"]
"""The subject of samples: everything together, a stream, or a consumer."""

MAX_POINTS = 1_000
"""The most points of a chart."""

EVERY = 10
"""Seconds between two samples."""


class Tier(Struct, frozen=True):
    """Samples of one length.

    Attributes:
        step: the seconds that a sample is about.
        kept: how long they are kept, in seconds. Then they are merged into the next tier, or deleted.
        rows: the most that are kept of all objects together, the newest ones.
    """

    step: int
    kept: int
    rows: int


TIERS = (Tier(EVERY, 3_600, 200_000), Tier(60, 86_400, 400_000), Tier(600, 7 * 86_400, 400_000))
"""The tiers, from the finest on: 10 seconds for an hour, a minute for a day, 10 minutes for a week."""


class Series(Struct, kw_only=True):
    """The figures of a chart. null where they are not known."""

    publish_rate: Annotated[list[float | None], Meta(description="Messages published per second.")]
    finish_rate: Annotated[list[float | None], Meta(description="Messages finished per second.")]
    lag: list[float | None]
    lag_seconds: list[float | None]
    in_flight: list[float | None]
    parked: list[float | None]
    blocked: list[float | None]
    dead_letters: list[float | None]


class Chart(Struct, kw_only=True):
    """Figures over time. A level is the largest one of its interval."""

    at: Annotated[list[float], Meta(description="The beginnings of the intervals, in seconds since 1970.")]
    step: Annotated[float, Meta(description="The length of an interval in seconds.")]
    series: Series
