"""`headrace publish STREAM [FILE]`: each line of a file or of standard input becomes a message.

Lines are read in chunks, and a chunk is one transaction. A line that is wrong ends it: all lines before it are published,
none after, and the error says where to go on.
"""

from __future__ import annotations

from typing import Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace import store
from headrace.cli.connection import connected
from headrace.cli.lines import STDIN, Lines, open_lines
from headrace.cli.loop import run_async
from headrace.cli.options import DatabaseOption
from headrace.cli.problems import Unfinished
from headrace.cli.progress import Progress, progress_of
from headrace.cli.records import BadLine, Chunk, read
from headrace.model.errors import HeadraceError, InvalidInput, StoreFull, StoreUnavailable, UnknownStream


def publish(
    stream: Annotated[str, Parameter(help="The stream to publish to.")],
    file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="NDJSON; - is standard input. A name in .gz is decompressed.")
    ] = STDIN,
    /,
    *,
    create: Annotated[bool, Parameter(negative="", help="Create the stream, unless it exists.")] = False,
    skip: Annotated[
        int, Parameter(validator=Number(gte=0), help="Lines to leave out at the start: those published before.")
    ] = 0,
    batch: Annotated[int, Parameter(validator=Number(gte=1, lte=1000), help="Messages in one transaction.")] = 1000,
    database: DatabaseOption = None,
) -> None:
    """Publish the lines of a file or of standard input: {"key": …, "data": …, "headers"?: …} on each line.

    An error names the line. The lines before it are published, and --skip goes on behind them.
    """
    run_async(_publish, stream, file, create, skip, batch, database)


async def _publish(stream: str, file: str, create: bool, skip: int, batch: int, url: str | None) -> None:
    with open_lines(file) as lines:
        async with connected(url) as database:
            await _find_or_create(database, stream, create)
            await lines.skip(skip)
            publication = Publication(database, stream, lines, batch)
            with progress_of(lines) as progress:
                await publication.run(progress)
    already = f"; {publication.unchanged:,} had not changed" if publication.unchanged else ""
    print(f"Published {counted(publication.published)} to {stream!r}{already}.")


async def _find_or_create(database: store.Database, stream: str, create: bool) -> None:
    if create:
        await store.create_stream(database, stream)
        return
    try:
        await store.stream(database, stream)
    except UnknownStream as error:
        raise UnknownStream(f"There is no stream {stream!r}: mend the name, or pass --create to create it.") from error


class Publication:
    """The lines of one source on their way into one stream.

    Attributes:
        published: messages that are in the stream for certain.
        unchanged: those that a stream with `dedupe` had already, and passed over.
        done: the number of the last line that is, or that was empty.
    """

    def __init__(self, database: store.Database, stream: str, lines: Lines, batch: int) -> None:
        self.published = 0
        self.unchanged = 0
        self.done = lines.number
        self._database = database
        self._stream = stream
        self._lines = lines
        self._batch = batch

    async def run(self, progress: Progress) -> None:
        """Publish everything. Raises `Unfinished`, which says what is published, and where to go on."""
        try:
            while taken := await self._lines.take(self._batch):
                # Once begun, a chunk is finished: an interrupt in its midst would leave us not knowing what was committed.
                with anyio.CancelScope(shield=True):
                    await self._publish(taken)
                progress(self.published)
        except HeadraceError as error:
            raise Unfinished(f"{error} {self._so_far()}", error.exit_code) from error
        except anyio.get_cancelled_exc_class():
            progress.say(f"headrace: Interrupted. {self._so_far()}")
            raise

    def _so_far(self) -> str:
        if not self.done:
            return "Nothing was published."
        return f"Published before: {counted(self.published)}, up to line {self.done}; go on with --skip {self.done}."

    async def _publish(self, taken: list[tuple[int, bytes]]) -> None:
        chunk, bad = read(taken)
        bad = await self._commit_up_to_bad(chunk) or bad
        self.done = bad.line - 1 if bad else taken[-1][0]
        if bad:
            raise bad

    async def _commit_up_to_bad(self, chunk: Chunk) -> BadLine | None:
        """Commit the chunk, or what stands before the first message that the database refuses."""
        try:
            await self._commit(chunk)
        except InvalidInput as error:
            place = await self._first_refused(chunk)
            await self._commit(chunk.first(place))
            return BadLine(chunk.lines[place], error)
        return None

    async def _commit(self, chunk: Chunk) -> None:
        committing = False
        try:
            async with self._database.transaction() as connection:
                published = await self._send(connection, chunk)
                committing = True
        except StoreFull:
            raise
        except StoreUnavailable as error:
            if not committing:
                raise
            raise StoreUnavailable(
                f"{error} It is not known whether lines {chunk.lines[0]} to {chunk.lines[-1]} were published:"
                " the connection broke at their commit."
            ) from error
        self.published += published
        self.unchanged += len(chunk) - published

    async def _first_refused(self, chunk: Chunk) -> int:
        """The place of the first message that the database refuses, which doesn't say which it was."""
        low, high = 0, len(chunk) - 1
        while low < high:
            middle = (low + high) // 2
            if await self._refused(chunk.first(middle + 1)):
                high = middle
            else:
                low = middle + 1
        return low

    async def _refused(self, chunk: Chunk) -> bool:
        try:
            async with self._database.transaction() as connection:
                await self._send(connection, chunk)
                raise _Undo
        except InvalidInput:
            return True
        except _Undo:
            return False

    async def _send(self, connection: store.Executor, chunk: Chunk) -> int:
        return await store.publish_many(connection, self._stream, chunk.keys, chunk.data, chunk.headers)


def counted(messages: int) -> str:
    """So many messages, in words."""
    return "1 message" if messages == 1 else f"{messages:,} messages"


class _Undo(Exception):
    """Leaves a transaction without committing it."""
