"""Look up a consumer by `STREAM NAME`, or by `NAME` alone if only one stream has a consumer of that name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.options.curl import Curl
from headrace.cli.problems import UsageProblem
from headrace.client.errors import NotAllowed
from headrace.model.errors import UnknownConsumer

if TYPE_CHECKING:
    from headrace.client import Administration

ConsumerWords = Annotated[
    str,
    Parameter(
        name="[STREAM] NAME",
        required=True,
        help="The consumer. Its name alone will do where only one stream has a consumer of that name.",
    ),
]


async def which(admin: Administration, words: Sequence[str]) -> tuple[str, str]:
    """Look up the consumer that the words name. Returns its stream and name.

    Raises:
        UnknownConsumer: no stream has a consumer of that name.
        UsageProblem: several streams have one, or there are too many words.
    """
    if len(words) == 2:
        return words[0], words[1]
    if len(words) != 1:
        raise UsageProblem(
            f"A consumer is named by its stream and its name, such as `orders ship`, and not by {len(words)} words:"
            f" {' '.join(words)!r}."
        )
    if isinstance(admin, Curl):
        raise UsageProblem(f"--as-curl asks nobody: write the consumer's stream, too, as in `orders {words[0]}`.")
    try:
        return await _of_that_name(admin, words[0])
    except NotAllowed as error:
        raise NotAllowed(f"{error} Or write the consumer's stream, too, as in `orders {words[0]}`.") from error


async def _of_that_name(admin: Administration, name: str) -> tuple[str, str]:
    everyone = [(one.stream, one.name) for one in await admin.consumers()]
    streams = [stream for stream, other in everyone if other == name]
    if len(streams) == 1:
        return streams[0], name
    if streams:
        raise UsageProblem(
            f"Several streams have a consumer {name!r}: write which is meant, {_either(f'{one} {name}' for one in streams)}."
        )
    own = [f"{stream} {other}" for stream, other in everyone if stream == name]
    if own:
        raise UnknownConsumer(f"{name!r} is a stream: write its consumer too, {_either(own)}.")
    raise UnknownConsumer(f"No stream has a consumer {name!r}: `headrace consumer ls` lists those that there are.")


def _either(calls: Iterable[str]) -> str:
    return " or ".join(f"`{call}`" for call in calls)
