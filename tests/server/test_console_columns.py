"""The columns of the console show what the API makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import Struct, structs

from headrace.model.capture import Backfill, FailedChange
from headrace.model.messages.scheduled import ScheduledMessage
from headrace.model.records import BlockedKey, ConsumerAtWork, DeadLetter
from headrace.model.schedules import ScheduleInfo
from headrace.model.tokens import TokenInfo
from headrace.model.watching.audit import AuditEntry
from headrace.model.watching.journeys import JourneyStop
from headrace.model.watching.live import ConsumerRow, SourceRow, StreamRow
from headrace.model.watching.operations import Job, PushAnswer, WebhookDelivery
from headrace.server import console
from headrace.server.routes.watching.live_answers import ProcessOfConsumer
from headrace.server.wire.messages import Message, PeekInfo

ROWS: dict[str, tuple[type[Struct], ...]] = {
    "audit": (AuditEntry,),
    "backfills": (Backfill,),
    "consumer": (ProcessOfConsumer,),
    "consumer_messages": (Message, PeekInfo, BlockedKey),
    "consumers": (ConsumerRow,),
    "dead_letters": (DeadLetter,),
    "jobs": (Job,),
    "message": (JourneyStop,),
    "messages": (Message,),
    "overview": (StreamRow, SourceRow, ConsumerRow),
    "processes": (ConsumerAtWork,),
    "push": (PushAnswer,),
    "scheduled": (ScheduledMessage,),
    "schedules": (ScheduleInfo,),
    "source": (FailedChange, WebhookDelivery),
    "sources": (SourceRow,),
    "streams": (StreamRow,),
    "tokens": (TokenInfo,),
}
"""The rows of the tables of each view, as the API makes them."""

VIEWS = Path(console.__path__[0]) / "static" / "views"

OF_THE_VIEW = {"consumer": {"why"}}
"""What a view adds to its rows."""

_FIELD = re.compile(r"\b(?:row|one|info|message)\.([a-z_0-9]+)")


def _shown(view: str) -> set[str]:
    """The fields that the columns of a view show."""
    lines = (VIEWS / f"{view}.js").read_text().splitlines()
    return {field for line in lines if "cell: (" in line for field in _FIELD.findall(line)}


def test_the_rows_of_every_view_with_columns_are_known() -> None:
    assert {path.stem for path in VIEWS.glob("*.js") if _shown(path.stem)} == set(ROWS)


@pytest.mark.parametrize("view", ROWS)
def test_each_column_of_the_console_is_a_field_that_the_api_makes(view: str) -> None:
    made = {field.encode_name for row in ROWS[view] for field in structs.fields(row)}
    assert _shown(view) - made - OF_THE_VIEW.get(view, set()) == set()
