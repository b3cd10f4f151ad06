"""Reads YAML and JSON as trees whose values know their place in the file.

The values are those of YAML 1.2's core schema, so `no` and `1:30` are texts. Keys of mappings are always texts, and a key
that occurs twice is refused. `${NAME}` in a text stands for a variable of the environment, and `$${` for `${`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.model.errors import ConfigurationError

MAX_BYTES = 4_000_000
"""The size of a file."""

MAX_VALUES = 100_000
"""The number of values in a file, with those that aliases repeat."""

MAX_CHARACTERS = 8_000_000
"""The length of all texts in a file together, with those that aliases repeat and the values of variables."""

MAX_DEPTH = 32
MAX_PROBLEMS = 20

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT, _FLOAT = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "true": True, "false": False} | {f"{word}": None for word in ("null", "Null", "NULL")}
_WORDS |= {"True": True, "TRUE": True, "False": False, "FALSE": False}


_OF_JSON = {ord("\t"): " "} | {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029, 0xFEFF)}
"""Text that JSON and YAML read differently. JSON may be indented with tabs, and has none in its texts. There it may
have characters that YAML takes for ends of lines.
"""


class Mark(msgspec.Struct, frozen=True):
    """A place in a file. Lines and columns are counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Node(msgspec.Struct, frozen=True):
    """A value with its place.

    Attributes:
        value: None, a boolean, a number, a text, a list of nodes, or a mapping from texts to nodes.
        mark: where it begins.
        keys: where the keys of a mapping are.
    """

    value: Any
    mark: Mark
    keys: Mapping[str, Mark] = {}

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def at(self, *path: str) -> Mark:
        """The place of the value that these keys lead to, as far as they exist."""
        node = self
        for key in path:
            if not isinstance(node.value, dict) or key not in node.value:
                break
            node = node.value[key]
        return node.mark


class Problems:
    """Collects what is wrong in files, so that all of it is reported together."""

    def __init__(self) -> None:
        self._found: list[ConfigurationError] = []

    def add(self, mark: Mark, sentence: object) -> None:
        """Add a problem."""
        self._found.append(ConfigurationError(f"{mark}: {sentence}"))

    def raise_any(self) -> None:
        """Raise `ConfigurationError`, in a group if there are several. Of many problems the first ones are reported."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise ExceptionGroup("The configuration is invalid", self._found[:MAX_PROBLEMS])


def read_documents(text: str, file: str, environment: Mapping[str, str], problems: Problems) -> list[Node]:
    """Read the documents of a file of YAML or JSON.

    Args:
        file: its name, for errors.
        environment: the variables that `${NAME}` may stand for.

    Raises:
        ConfigurationError: it is not YAML, or has too many values, or PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            "Configuration files need PyYAML, which is not installed. Install it with: pip install 'headrace[config]'"
        ) from None

    class Loader(yaml.SafeLoader):
        nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.nodes += 1  # here, since the tree of a large file takes minutes
            if self.nodes > 2 * MAX_VALUES:  # with the keys
                place = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise _too_many(Mark(file, place.line + 1, place.column + 1))
            return super().compose_node(parent, index)

    if text.lstrip().startswith(("{", "[")):
        text = text.translate(_OF_JSON)
    try:
        roots = [root for root in yaml.compose_all(text, Loader=Loader) if root is not None]
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = file if place is None else Mark(file, place.line + 1, place.column + 1)
        raise ConfigurationError(f"{where}: This is not valid YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: This is not valid YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise ConfigurationError(f"{file}: Values are nested too deeply.") from None
    reader = _Reader(file, environment, problems)
    return [reader.read(root, 0) for root in roots]


def decoded(raw: bytes, file: str) -> str:
    """The text of a file, of which at least one byte more than `MAX_BYTES` was read, if it has as many.

    Raises:
        ConfigurationError: it is too large, or not UTF-8.
    """
    if len(raw) > MAX_BYTES:
        raise ConfigurationError(f"{file} is larger than {MAX_BYTES:,} bytes. Divide it into several files.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not text in UTF-8: byte {error.start:,} is invalid.") from None


def write_document(value: Any) -> str:
    """Write a value as YAML, so that `read_documents` reads the same. `${` in texts must be escaped already."""
    import yaml

    class Writer(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_text(self, text: str) -> Any:
            quoted = text in _WORDS or _INT.fullmatch(text) or _FLOAT.fullmatch(text)
            return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)

    Writer.add_representer(str, Writer.represent_text)
    return yaml.dump(value, Dumper=Writer, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def _too_many(mark: Mark) -> ConfigurationError:
    return ConfigurationError(f"{mark}: The file has more than {MAX_VALUES:,} values, with those that aliases repeat.")


class _Reader:
    """Makes nodes of PyYAML's nodes."""

    def __init__(self, file: str, environment: Mapping[str, str], problems: Problems) -> None:
        self._file, self._environment, self._problems = file, environment, problems
        self._values = self._characters = 0

    def read(self, node: Any, depth: int) -> Node:
        self._values += 1
        mark = self._mark(node)
        if self._values > MAX_VALUES:
            raise _too_many(mark)
        if depth > MAX_DEPTH:
            raise ConfigurationError(f"{mark}: Values are nested more than {MAX_DEPTH} deep.")
        if node.id == "mapping":
            return self._mapping(node, mark, depth)
        if node.id == "sequence":
            return Node([self.read(one, depth + 1) for one in node.value], mark)
        value = self._scalar(node, mark)
        self._characters += len(value) if isinstance(value, str) else 0
        if self._characters > MAX_CHARACTERS:
            raise ConfigurationError(
                f"{mark}: The texts of the file have more than {MAX_CHARACTERS:,} characters, with those that aliases repeat."
            )
        return Node(value, mark)

    def _mapping(self, node: Any, mark: Mark, depth: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        merged: dict[str, Node] = {}
        for key, value in node.value:
            if key.id != "scalar":
                self._problems.add(self._mark(key), "A key must be a text.")
            elif key.value == "<<" and key.style is None:
                for one in self._merged(self.read(value, depth + 1)):
                    merged = {**one.value, **merged}
            else:
                place = self._mark(key)
                name = self._text(key.value, place)
                if name in values:
                    self._problems.add(place, f"The key {name!r} is given twice, first in line {keys[name].line}.")
                keys.setdefault(name, place)
                values[name] = self.read(value, depth + 1)
        merged_keys = {name: one.mark for name, one in merged.items()}
        return Node({**merged, **values}, mark, {**merged_keys, **keys})

    def _merged(self, node: Node) -> Iterator[Node]:
        """The mappings that `<<` merges: one, or a list of them."""
        for one in node.value if isinstance(node.value, list) else [node]:
            if isinstance(one.value, dict):
                yield one
            else:
                self._problems.add(one.mark, "`<<` merges mappings, and this is not one.")

    def _scalar(self, node: Any, mark: Mark) -> Any:
        text = node.value
        if node.style is None and node.tag != "tag:yaml.org,2002:str":
            if text in _WORDS:
                return _WORDS[text]
            if _INT.fullmatch(text) and len(text) <= 400:
                return int(text)
            if _FLOAT.fullmatch(text):
                return float(text)
        return self._filled(self._text(text, mark), mark)

    def _text(self, text: str, mark: Mark) -> str:
        """The text, if Postgres can store it."""
        try:  # JSON writes a character beyond the first plane as two escapes
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._problems.add(mark, "The text has half of a surrogate pair, which is not a character.")
            return ""
        if "\0" in text:
            self._problems.add(mark, "The text has a NUL character, which Postgres can't store. Leave it out.")
        return text

    def _filled(self, text: str, mark: Mark) -> str:
        """The text with the values of variables."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return "${"
            if not found[0].endswith("}") or not _NAME.fullmatch(name):
                self._problems.add(
                    mark, f"{found[0]!r} is not a reference to a variable. Write ${{NAME}}, or $${{ for ${{ itself."
                )
            elif name not in self._environment:
                self._problems.add(
                    mark,
                    f"The variable {name} is not set in the environment. Set it, or write $${{{name}}} for the text.",
                )
            return self._environment.get(name, "")

        return _VARIABLE.sub(value, text)

    def _mark(self, node: Any) -> Mark:
        return Mark(self._file, node.start_mark.line + 1, node.start_mark.column + 1)
