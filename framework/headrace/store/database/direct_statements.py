"""The functions of one stream that publish to it, and which of them a call may use.

A process of the owner calls them directly for the streams that it publishes to most. See `create_appenders` in
`sql/functions/messages/publish.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.model.keys import are_plain
from headrace.model.text.sql import quoted

MAX_STREAMS = 32
"""The number of streams whose functions a process calls directly. Each connection prepares statements for each of them."""

LARGE = 2_000
"""Characters of the first of many messages from which on their data is large."""

FEW = 8
"""Small messages below this number are not checked here, because the server checks them for less than it takes to ask
whether the caller can be believed."""

SEPARATOR = "\x01"
"""What is between texts that are sent as one. No key has it, and no JSON."""

# With explicit types, because not every driver asks the server for them.
_ONE = "select headrace_streams.{}($1, $2::text::json, $3::text::json)"
_MANY = "select headrace_streams.{}($1, $2::text[]::json[], $3::text[]::json[])"
# Connections of a process have no codecs of the user, so large data is sent as JSON. The server copies it less often. With
# small data, the driver takes longer for that than the server saves.
_LARGE = "select headrace_streams.{}($1, $2::json[], $3::json[])"
_JOINED = r"""select headrace_streams.{}(
    string_to_array($1, E'\u0001'), string_to_array($2, E'\u0001')::json[], string_to_array($3, E'\u0001', '')::json[])"""


class DirectStatements(NamedTuple):
    """The statements that publish to a stream by its own functions.

    `joined` takes small messages that were checked, and `checked` large ones. The others are for all messages.
    """

    one: str
    many: str
    large: str
    joined: str
    checked: str

    @classmethod
    def of(cls, stream: str) -> DirectStatements:
        """The statements for the stream with this name."""
        name, checked = quoted(f"{stream}.publish"), quoted(f"{stream}.publish_checked")
        return cls(
            _ONE.format(quoted(f"{stream}.publish_one")),
            _MANY.format(name),
            _LARGE.format(name),
            _JOINED.format(checked),
            _LARGE.format(checked),
        )

    def for_many(
        self, keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None] | None
    ) -> tuple[str, tuple[Any, ...]]:
        """The statement that publishes these messages for the least, and its arguments."""
        large = len(data[0]) >= LARGE
        texts = joined_if_checked(keys, data, headers) if large or len(keys) >= FEW else None
        if texts is None or (not large and texts.count(SEPARATOR) >= len(data)):
            return self.large if large else self.many, (keys, data, headers)
        if large:
            return self.checked, (keys, data, headers)
        joined = None if headers is None else SEPARATOR.join(one or "" for one in headers)
        return self.joined, (SEPARATOR.join(keys), texts, joined)


def joined_if_checked(keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None] | None) -> str | None:
    """The data as one text, if these are certainly messages, by a test that costs little. Otherwise None.

    `is_message` in `sql/functions/messages/checks.sql` has the rules. What is left to the server: the size, whether the JSON is
    valid, and what this test can't decide. JSON has no other form of a NUL than the one below.
    """
    try:
        texts = SEPARATOR.join(data)
        kept = (
            are_plain(keys)
            and ("\\" not in texts or "\\u0000" not in texts)
            and (headers is None or all(one is None or one.startswith("{") for one in headers))
        )
    except (AttributeError, TypeError):  # not all are texts
        return None
    return texts if kept else None
