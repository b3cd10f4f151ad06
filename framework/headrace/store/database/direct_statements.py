"""The functions of one stream that publish to it, and which of them a call may use.

A process of the owner calls them directly for the streams that it publishes to most. See `create_appenders` in
`sql/functions/publish.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.keys import are_plain

MAX_STREAMS = 32
"""The number of streams whose functions a process calls directly. Each connection prepares statements for each of them."""

LARGE = 2_000
"""Characters of the first of many messages from which on their data is large."""

FEW = 8
"""Small messages below this number are not checked here, because the server checks them for less than a second test
of the caller's rights costs."""

# With explicit types, because not every driver asks the server for them.
_ONE = "select headrace_streams.{}($1, $2::text::json, $3::text::json)"
_MANY = "select headrace_streams.{}($1, $2::text[]::json[], $3::text[]::json[])"
# Connections of a process have no codecs of the user, so large data is sent as JSON. The server copies it less often. With
# small data, the driver takes longer for that than the server saves.
_LARGE = "select headrace_streams.{}($1, $2::json[], $3::json[])"


class DirectStatements(NamedTuple):
    """The statements that publish to a stream by its own functions."""

    one: str
    many: str
    large: str
    checked: str
    checked_large: str

    @classmethod
    def of(cls, stream: str) -> DirectStatements:
        """The statements for the stream with this name."""
        many, checked = _quoted(f"{stream}.publish"), _quoted(f"{stream}.publish_checked")
        return cls(
            _ONE.format(_quoted(f"{stream}.publish_one")),
            _MANY.format(many),
            _LARGE.format(many),
            _MANY.format(checked),
            _LARGE.format(checked),
        )

    def for_many(self, keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None] | None) -> str:
        """The statement that publishes these messages for the least."""
        large = len(data[0]) >= LARGE
        if (large or len(keys) >= FEW) and keeps_rules(keys, data, headers):
            return self.checked_large if large else self.checked
        return self.large if large else self.many


def keeps_rules(keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None] | None) -> bool:
    """Whether these are certainly messages, by a test that costs little. `is_message` in `sql/functions/checks.sql` has
    the rules. What is left to the server: the size, whether the JSON is valid, and what this test can't decide.
    """
    try:
        return (
            are_plain(keys)
            and ("\\" not in "".join(data) or not any("\\u0000" in text for text in data))  # NUL has no other form
            and (headers is None or all(one is None or one.startswith("{") for one in headers))
        )
    except (AttributeError, TypeError):  # not all are texts
        return False


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
