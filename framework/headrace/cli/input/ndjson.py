"""Parses NDJSON lines into messages: `{"key": …, "data": …, "headers"?: …}`. It checks everything that
can be checked without a database.
"""

from __future__ import annotations

import msgspec

from headrace.model.errors import InvalidData, InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages import payloads


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a line. `data` and `headers` keep their original JSON text."""

    key: str
    data: msgspec.Raw
    headers: msgspec.Raw = msgspec.Raw(b"null")


class Chunk(msgspec.Struct):
    """Messages to publish in one transaction, with the line number of each."""

    lines: list[int] = []
    keys: list[str] = []
    data: list[str] = []
    headers: list[str | None] = []

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, number: int, line: bytes) -> None:
        """Add the message of a line. Raises `InvalidInput`, and then adds nothing."""
        key, data, headers = parse_line(line)
        self.lines.append(number)
        self.keys.append(key)
        self.data.append(data)
        self.headers.append(headers)

    def halves(self) -> tuple[Chunk, Chunk]:
        """Split the messages into two chunks."""
        middle = len(self) // 2
        return self._part(slice(middle)), self._part(slice(middle, None))

    def _part(self, part: slice) -> Chunk:
        return Chunk(self.lines[part], self.keys[part], self.data[part], self.headers[part])


class InvalidLine(InvalidInput):
    """A line that can't be published."""

    def __init__(self, line: int, error: InvalidInput) -> None:
        super().__init__(f"Line {line}: {error}")
        self.line = line


def parse_lines(lines: list[tuple[int, bytes]]) -> tuple[Chunk, InvalidLine | None]:
    """Parse numbered lines into messages, up to the first invalid line, if there is one. Empty lines are skipped."""
    chunk = Chunk()
    for number, line in lines:
        try:
            if line.strip():
                chunk.add(number, line)
        except InvalidInput as error:
            return chunk, InvalidLine(number, error)
    return chunk, None


_decoder = msgspec.json.Decoder(Record)


def parse_line(line: bytes) -> tuple[str, str, str | None]:
    """Return the key, data and headers of a line. Raises `InvalidInput`, which says what a line looks like."""
    try:
        record = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f'{_as_sentence(error)} A line is a JSON object such as {{"key": "orders.us.42", "data": {{"total": 12}}}}.'
        ) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidData(f"{_as_sentence(error)} Each line must be one JSON object in UTF-8.") from error
    except RecursionError as error:
        raise InvalidData("It is nested too deeply.") from error
    return check_key(record.key), payloads.encode(record.data), _headers(record.headers)


def _headers(raw: msgspec.Raw) -> str | None:
    text = payloads.encode(raw)
    if text == "null":
        return None
    if not text.startswith("{"):
        raise InvalidData('Headers must be a JSON object, such as {"trace": "abc"}.')
    return text


def _as_sentence(error: Exception) -> str:
    text = str(error).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
