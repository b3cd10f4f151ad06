"""Lists that are sent as lines of JSON, however long they are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.errors import HeadraceError
from headrace.model.pages import Page
from headrace.model.records import DeadLetter
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.errors import error_response
from headrace.server.routes.raw_messages import RawMessages

NDJSON = "application/x-ndjson"

EXPORT_PAGE = 500
"""The largest number of dead letters that are read at once. A page also ends at its size."""


async def exported(
    messages: RawMessages, consumer: CachedConsumer, selection: DeadLetterCriteria, page: Page[DeadLetter]
) -> AsyncIterator[bytes]:
    """Yield all dead letters that match, beginning with a page that was read already, as lines of JSON.

    An error ends them with a line of its own, since the answer has begun.
    """
    while page:
        yield b"".join(msgspec.json.encode(letter) + b"\n" for letter in page)
        if not page.more:
            return
        try:
            page = await messages.dead_letters(consumer, selection, limit=EXPORT_PAGE, above=page[-1].seq)
        except HeadraceError as error:
            yield error_response(error).body + b"\n"
            return
