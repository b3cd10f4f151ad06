"""`headrace publish STREAM [FILE]`: publish each line of a file or of standard input as a message.

Lines are read in chunks, and each chunk is one transaction. An invalid line ends the command. All lines
before it are published, none after it, and the error says how to continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administration
from headrace.cli.errors import StoppedEarly
from headrace.cli.input.line_reader import STDIN, LineReader, open_lines
from headrace.cli.input.ndjson import Chunk, InvalidLine, parse_lines
from headrace.cli.options.times import time_to_live
from headrace.cli.output.progress import Progress, progress_bar
from headrace.cli.processes.event_loop import run_async
from headrace.client.errors import NotAllowed
from headrace.model.errors import HeadraceError, InDoubt, InvalidInput, NotGranted, UnknownStream
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration


def publish(
    stream: Annotated[str, Parameter(help="The stream to publish to.")],
    file: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="A file of NDJSON; - is standard input. A file whose name ends in .gz is decompressed.",
        ),
    ] = STDIN,
    /,
    *,
    create: Annotated[bool, Parameter(negative="", help="Create the stream if it doesn't exist.")] = False,
    skip: Annotated[int, Parameter(validator=Number(gte=0), help="The number of lines to skip at the start.")] = 0,
    batch: Annotated[
        int, Parameter(validator=Number(gte=1, lte=1000), help="The number of messages in one transaction.")
    ] = 1000,
    expires_in: Annotated[
        str | None,
        Parameter(show_default=False, help="Deliver the messages to no consumer after this time, such as 30s."),
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
) -> None:
    """Publish each line of a file or of standard input as a message.

    A line is a JSON object such as {"key": "orders.42", "data": {"total": 12}},
    with optional "headers". An error names the line. The lines before it are
    published. To continue after them, use --skip.
    """
    backend.require_single_request("use `headrace stream send`")
    run_async(_publish, stream, file, create, skip, batch, time_to_live(expires_in, "--expires-in"), backend)


async def _publish(
    stream: str, file: str, create: bool, skip: int, batch: int, expires_in: float | None, backend: Backend
) -> None:
    with open_lines(file) as lines:
        async with administration(backend) as admin:
            await _find_or_create(admin, stream, create)
            await lines.skip(skip)
            publication = Publication(admin, stream, lines, batch, expires_in)
            with progress_bar(lines) as progress:
                await publication.run(progress)
    unchanged = f". Unchanged: {count(publication.unchanged, 'message')}" if publication.unchanged else ""
    print(f"Published {count(publication.published, 'message')} to {stream!r}{unchanged}.")


async def _find_or_create(admin: Administration, stream: str, create: bool) -> None:
    try:
        await admin.stream(stream)
    except (NotAllowed, NotGranted):  # the token or the database role may only allow publishing
        if create:
            raise
    except UnknownStream as error:
        if not create:
            raise UnknownStream(
                f"The stream {stream!r} does not exist. Correct the name, or create it with --create."
            ) from error
        await admin.create_stream(stream)


class Publication:
    """Publishes the lines of one input to one stream.

    Attributes:
        published: the number of messages that are certainly in the stream.
        unchanged: the number of messages that a stream with `dedupe` skipped, because it already had them.
        done: the number of the last line that is published, unchanged or empty.
    """

    def __init__(
        self, admin: Administration, stream: str, lines: LineReader, batch: int, expires_in: float | None = None
    ) -> None:
        self.published = 0
        self.unchanged = 0
        self.done = lines.number
        self._admin = admin
        self._stream = stream
        self._lines = lines
        self._batch = batch
        self._expires_in = expires_in

    async def run(self, progress: Progress) -> None:
        """Publish everything. Raises `StoppedEarly`, which says what was published and how to continue."""
        try:
            while lines := await self._lines.take(self._batch):
                # A started chunk is finished. If an interrupt stopped it, we would not know what was
                # committed.
                with anyio.CancelScope(shield=True):
                    await self._publish(lines)
                progress(self.published)
        except HeadraceError as error:
            raise StoppedEarly(f"{error} {self._status()}", error.exit_code) from error
        except anyio.get_cancelled_exc_class():
            progress.print_line(f"headrace: Interrupted. {self._status()}")
            raise

    def _status(self) -> str:
        if not self.done:
            return "Nothing was published."
        return f"{count(self.published, 'message')} up to line {self.done} were published. Continue with --skip {self.done}."

    async def _publish(self, lines: list[tuple[int, bytes]]) -> None:
        chunk, bad = parse_lines(lines)
        if chunk:
            await self._send(chunk)
        self.done = bad.line - 1 if bad else lines[-1][0]
        if bad:
            raise bad

    async def _send(self, chunk: Chunk) -> None:
        """Publish the whole chunk, or if one of its messages is invalid, the messages before that one."""
        try:
            published = await self._admin.send_many(
                self._stream, chunk.keys, chunk.data, chunk.headers, expires_in=self._expires_in
            )
        except InvalidInput as error:
            if len(chunk) == 1:
                self.done = chunk.lines[0] - 1
                raise InvalidLine(chunk.lines[0], error) from error
            # The error doesn't say which message is invalid, or the chunk is too large for the server.
            # Send it in halves.
            first, second = chunk.halves()
            await self._send(first)
            await self._send(second)
            return
        except InDoubt as error:
            raise InDoubt(
                f"{error} Lines {chunk.lines[0]} to {chunk.lines[-1]} may or may not be published."
            ) from error
        self.published += published
        self.unchanged += len(chunk) - published
        self.done = chunk.lines[-1]
