"""The annotations of typed handlers that take a value of each type, as the table of types in the documentation has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.sources.postgres.sessions import Session

NINES = "9" * 5000

FIT: list[tuple[str, str, str, Any, Any]] = [
    ("boolean", "t", "string", bool, True),
    ("bigint", "9223372036854775807", "string", int, 2**63 - 1),
    ("float8", "0.1", "string", float, 0.1),
    ("float8", "NaN", "string", float | str, "NaN"),
    ("numeric", "20.90", "string", Decimal, Decimal("20.90")),
    ("numeric", NINES, "string", Decimal, Decimal(NINES)),
    ("numeric", NINES, "string", str, NINES),
    ("numeric", "-Infinity", "string", Decimal, Decimal("-Infinity")),
    ("numeric", "-Infinity", "number", Decimal, Decimal("-Infinity")),
    ("numeric", NINES, "number", Decimal, Decimal(NINES)),
    ("numeric", NINES + ".5", "number", Decimal, Decimal(NINES + ".5")),
    ("timestamptz", "2030-01-31 12:00:00.25 UTC", "string", datetime, datetime(2030, 1, 31, 12, 0, 0, 250_000, UTC)),
    ("timestamp", "2030-01-31 12:00", "string", datetime, datetime(2030, 1, 31, 12)),  # noqa: DTZ001 - it has no zone
    ("timestamp", "infinity", "string", str, "infinity"),
    ("date", "2030-01-31", "string", date, date(2030, 1, 31)),
    ("date", "10000-01-01", "string", str, "+10000-01-01"),
    ("time", "14:30", "string", time, time(14, 30)),
    ("timetz", "14:30+02", "string", time, time(14, 30, tzinfo=timezone(timedelta(hours=2)))),
    ("interval", "3 days 04:05:06.5", "string", timedelta, timedelta(3, 4 * 3600 + 5 * 60 + 6.5)),
    ("interval", "-1 day -02:03:00", "string", str, "P-1DT-2H-3M"),
    ("interval", "1 year 2 mons", "string", str, "P1Y2M"),
    ("bytea", "\\x6869", "string", str, "\\x6869"),
    ("jsonb", '{"a": [1, null]}', "string", dict[str, list[int | None]], {"a": [1, None]}),
    ("json", '"a\\ud800b\\u0000c"', "string", str, "a\ufffdb\ufffdc"),
    ("json", '{"\\udfff": 1}', "string", dict[str, int], {"\ufffd": 1}),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "string", UUID, UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("int[]", "{{1,2},{3,null}}", "string", list[list[int | None]], [[1, 2], [3, None]]),
    ("int4range", "[1,5)", "string", dict[str, int | str | None], {"lower": 1, "upper": 5, "bounds": "[)"}),
    ("int4multirange", "{[1,5)}", "string", list[dict[str, int | str | None]], [{"lower": 1, "upper": 5, "bounds": "[)"}]),
    ("inet", "10.0.0.1", "string", str, "10.0.0.1"),
]  # fmt: skip

UNFIT: list[tuple[str, str, str, Any]] = [
    ("interval", "-1 day -02:03:00", "string", timedelta),
    ("interval", "-1 sec", "string", timedelta),
    ("interval", "1 mon", "string", timedelta),
    ("numeric", NINES, "number", int),
    ("numeric", NINES, "number", Any),
    ("numeric", "20.90", "string", float),
    ("timestamp", "infinity", "string", datetime),
    ("date", "10000-01-01", "string", date),
    ("json", NINES, "string", Any),
]


@pytest.fixture
def session(empty_dsn: str) -> Iterator[Session]:
    session = Session(empty_dsn)
    yield session
    session.close()


def _decode(session: Session, kind: str, literal: str, numeric: str, annotation: Any) -> Any:
    """Return the value as a handler with this annotation gets it."""
    return msgspec.json.Decoder(annotation).decode(session.json(kind, [literal], numeric=numeric)[0])


def test_a_value_of_each_type_fits_the_annotation_that_is_documented(session: Session) -> None:
    for kind, literal, numeric, annotation, value in FIT:
        assert _decode(session, kind, literal, numeric, annotation) == value, (kind, literal[:40], annotation)


def test_values_that_a_narrower_annotation_refuses_do_so(session: Session) -> None:
    for kind, literal, numeric, annotation in UNFIT:
        with pytest.raises(msgspec.ValidationError):
            _decode(session, kind, literal, numeric, annotation)
