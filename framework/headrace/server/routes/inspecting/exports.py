"""Lists that are sent as lines of JSON, however long they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from headrace.model.errors import HeadraceError
from headrace.model.pages import Page
from headrace.model.records import DeadLetter
from headrace.server.errors import error_response

NDJSON = "application/x-ndjson"

EXPORT_PAGE = 500
"""The largest number of dead letters that are read at once. A page also ends at its size."""


async def exported(read: Callable[[int], Awaitable[Page[DeadLetter]]], page: Page[DeadLetter]) -> AsyncIterator[bytes]:
    """Yield all dead letters as lines of JSON, beginning with a page that was read already. `read` reads the page above a
    seq.

    An error ends them with a separate line, since the answer has begun.
    """
    while page:
        yield b"".join(msgspec.json.encode(letter) + b"\n" for letter in page)
        if not page.more:
            return
        try:
            page = await read(page[-1].seq)
        except HeadraceError as error:
            yield error_response(error).body + b"\n"
            return
