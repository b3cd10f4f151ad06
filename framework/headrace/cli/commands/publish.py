"""`headrace publish STREAM [FILE]`: publish each line of a file or of standard input as a message.

Lines are read in chunks, and each chunk is one transaction. An invalid line ends the command. All lines
before it are published, none after it, and the error says how to continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.input.line_reader import STDIN, Lines, open_lines
from headrace.cli.input.records import BadLine, Chunk, read
from headrace.cli.options.backend import Backend
from headrace.cli.options.connection import administration
from headrace.cli.output.progress import Progress, progress_of
from headrace.cli.problems import Unfinished
from headrace.cli.processes.event_loop import run_async
from headrace.client.errors import NotAllowed
from headrace.model.errors import HeadraceError, InDoubt, InvalidInput, UnknownStream

if TYPE_CHECKING:
    from headrace.client import Administration


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
    backend: Backend = Backend(),  # noqa: B008 - frozen
) -> None:
    """Publish the lines of a file or of standard input: {"key": …, "data": …, "headers"?: …} on each line.

    An error names its line. The lines before it are published, and --skip
    continues after them.
    """
    backend.one_request("see `headrace stream send`")
    run_async(_publish, stream, file, create, skip, batch, backend)


async def _publish(stream: str, file: str, create: bool, skip: int, batch: int, backend: Backend) -> None:
    with open_lines(file) as lines:
        async with administration(backend) as admin:
            await _find_or_create(admin, stream, create)
            await lines.skip(skip)
            publication = Publication(admin, stream, lines, batch)
            with progress_of(lines) as progress:
                await publication.run(progress)
    already = f"; {publication.unchanged:,} had not changed" if publication.unchanged else ""
    print(f"Published {counted(publication.published)} to {stream!r}{already}.")


async def _find_or_create(admin: Administration, stream: str, create: bool) -> None:
    try:
        await admin.stream(stream)
    except NotAllowed:  # the token may only allow publishing
        if create:
            raise
    except UnknownStream as error:
        if not create:
            raise UnknownStream(
                f"There is no stream {stream!r}: mend the name, or pass --create to create it."
            ) from error
        await admin.create_stream(stream)


class Publication:
    """Publishes the lines of one source to one stream.

    Attributes:
        published: messages that are certainly in the stream.
        unchanged: messages that a stream with `dedupe` already had, and skipped.
        done: the number of the last line that is published, unchanged or empty.
    """

    def __init__(self, admin: Administration, stream: str, lines: Lines, batch: int) -> None:
        self.published = 0
        self.unchanged = 0
        self.done = lines.number
        self._admin = admin
        self._stream = stream
        self._lines = lines
        self._batch = batch

    async def run(self, progress: Progress) -> None:
        """Publish everything. Raises `Unfinished`, which says what is published and how to continue."""
        try:
            while taken := await self._lines.take(self._batch):
                # A chunk that was begun is finished. After an interrupt in its middle, it would be
                # unknown what was committed.
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
        if chunk:
            await self._send(chunk)
        self.done = bad.line - 1 if bad else taken[-1][0]
        if bad:
            raise bad

    async def _send(self, chunk: Chunk) -> None:
        """Publish the whole chunk, or if one of its messages is refused, the messages before that one."""
        try:
            published = await self._admin.send_many(self._stream, chunk.keys, chunk.data, chunk.headers)
        except InvalidInput as error:
            if len(chunk) == 1:
                self.done = chunk.lines[0] - 1
                raise BadLine(chunk.lines[0], error) from error
            # The error doesn't say which message is refused, or the chunk is too large for the server.
            # Send it by halves.
            first, second = chunk.halves()
            await self._send(first)
            await self._send(second)
            return
        except InDoubt as error:
            raise InDoubt(
                f"{error} It is not known whether lines {chunk.lines[0]} to {chunk.lines[-1]} were published."
            ) from error
        self.published += published
        self.unchanged += len(chunk) - published
        self.done = chunk.lines[-1]


def counted(messages: int) -> str:
    """A count of messages in words."""
    return "1 message" if messages == 1 else f"{messages:,} messages"
