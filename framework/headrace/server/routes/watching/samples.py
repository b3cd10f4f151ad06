"""Route of samples for charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

from litestar.params import QueryParameter
from msgspec import Struct, structs

from headrace.model.conditions.selections import NO_NUL
from headrace.model.errors import InvalidInput
from headrace.model.watching.samples import MAX_POINTS, Chart, SampleKind, Series
from headrace.server.access import methods
from headrace.server.engine import Engine
from headrace.server.merging import read_all
from headrace.server.routes.context import Context
from headrace.server.routes.watching.live_lookups import consumer_row, stream_row

Kind = Annotated[
    SampleKind, QueryParameter(description="The subject of the samples: everything together, a stream, or a consumer.")
]
StreamName = Annotated[
    str | None, QueryParameter(max_length=200, pattern=NO_NUL, description="Id or name of the stream.")
]
ConsumerName = Annotated[
    str | None, QueryParameter(max_length=200, pattern=NO_NUL, description="Id or name of the consumer.")
]
Since = Annotated[datetime | None, QueryParameter(description="The beginning, by default 3 hours before the end.")]
Until = Annotated[datetime | None, QueryParameter(description="The end, by default now.")]
Points = Annotated[int, QueryParameter(ge=2, le=MAX_POINTS, description="The most intervals.")]


class ChartAnswer(Struct):
    """Figures over time."""

    data: Chart


@methods.read("/samples", summary="Read samples for a chart", tags=["Live"])
async def read_samples(
    context: Context,
    kind: Kind = "total",
    stream: StreamName = None,
    consumer: ConsumerName = None,
    since: Since = None,
    until: Until = None,
    points: Points = 180,
) -> ChartAnswer:
    """Returns figures over time, at most of a week. Samples are taken every 10 seconds and kept for an hour, then one of
    each minute for a day, then one of each 10 minutes. `total` requires `consume` of all streams."""
    until = until or datetime.now(UTC)
    since = since or until - timedelta(hours=3)
    if kind == "total":
        await context.check_all_streams("consume")

        async def read(engine: Engine) -> Chart:
            return await context.admin_of(engine).samples(since=since, until=until, points=points)

        found, _ = await read_all(context.engine, read)
        return ChartAnswer(_sum(found))
    if stream is None or (kind == "consumer" and consumer is None):
        raise InvalidInput(f"Samples of a {kind} need its names. Give {kind}.", field=kind)
    snapshot = await context.live.snapshot()
    of = await stream_row(context, snapshot, stream)
    name = consumer_row(snapshot, of, consumer).name if kind == "consumer" and consumer is not None else None
    engine = await context.engine_of(of.database)
    return ChartAnswer(
        await context.admin_of(engine).samples(
            kind, stream=of.name, consumer=name, since=since, until=until, points=points
        )
    )


def _sum(charts: Sequence[Chart]) -> Chart:
    """The sums of the charts of several databases, and the largest ages. What is unknown in one is left out."""
    first = charts[0]
    charts = [one for one in charts if one.at == first.at]  # the length of an interval depends on the moment
    series = {}
    for name in Series.__struct_fields__:
        add = max if name == "lag_seconds" else sum
        columns = zip(*(getattr(one.series, name) for one in charts), strict=True)
        known = ([value for value in column if value is not None] for column in columns)
        series[name] = [add(values) if values else None for values in known]
    return structs.replace(first, series=Series(**series))
