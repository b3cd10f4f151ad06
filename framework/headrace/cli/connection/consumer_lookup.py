"""Looks up a consumer by `STREAM NAME`, or by `NAME` alone if only one stream has a consumer of that name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec, TypeVar

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.connection.curl import CurlRemote
from headrace.cli.errors import UsageError
from headrace.client.errors import NotAllowed
from headrace.model.errors import UnknownConsumer

if TYPE_CHECKING:
    from headrace.client import Administration

P = ParamSpec("P")
T = TypeVar("T")

ConsumerArguments = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME",
        required=True,
        help="The consumer. You can leave out its stream if only one stream has a consumer of that name.",
    ),
]


def administer_consumer(
    backend: Backend,
    words: Sequence[str],
    function: Callable[Concatenate[Administration, str, str, P], Awaitable[T]],
    *args: P.args,
    **settings: P.kwargs,
) -> T:
    """Call a function as `administer` does, with the stream and the name of the consumer that the words
    name. Raises what `find_consumer` raises, too.
    """

    async def call(admin: Administration) -> T:
        stream, name = await find_consumer(admin, words)
        return await function(admin, stream, name, *args, **settings)

    return administer(backend, call)


async def find_consumer(admin: Administration, words: Sequence[str]) -> tuple[str, str]:
    """Look up the consumer that the words name. Returns its stream and name.

    Raises:
        UnknownConsumer: no stream has a consumer of that name.
        UsageError: several streams have one, or there are too many words.
    """
    if len(words) == 2:
        return words[0], words[1]
    if len(words) != 1:
        raise UsageError(
            f"Give a consumer as its stream and its name, such as `orders ship`, not as {len(words)} words:"
            f" {' '.join(words)!r}."
        )
    if isinstance(admin, CurlRemote):
        raise UsageError(f"--as-curl can't look up the consumer. Give its stream, too, such as `orders {words[0]}`.")
    try:
        return await _find_by_name(admin, words[0])
    except NotAllowed as error:
        raise NotAllowed(f"{error} Or give the consumer's stream, too, such as `orders {words[0]}`.") from error


async def _find_by_name(admin: Administration, name: str) -> tuple[str, str]:
    consumers = [(one.stream, one.name) for one in await admin.consumers()]
    streams = [stream for stream, other in consumers if other == name]
    if len(streams) == 1:
        return streams[0], name
    if streams:
        raise UsageError(
            f"Several streams have a consumer {name!r}. Give its stream, too: {_alternatives(f'{one} {name}' for one in streams)}."
        )
    of_stream = [f"{stream} {other}" for stream, other in consumers if stream == name]
    if of_stream:
        raise UnknownConsumer(f"{name!r} is a stream. Give its consumer, too: {_alternatives(of_stream)}.")
    raise UnknownConsumer(f"No stream has a consumer {name!r}. List the consumers with `headrace consumer ls`.")


def _alternatives(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)
