"""The declarations of configuration files: objects with the settings that the files mention, and their places.

Everything that can be said without the database is checked here: names of fields, their types, and what occurs twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import msgspec

from headrace.admin.configuration.documents import Mark, Node, Problems
from headrace.admin.configuration.fields import SPECS, Fields, fields_of, read_setting
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.push import Push
from headrace.model.settings import settings_of
from headrace.model.text.names import NAME, NAME_RULE
from headrace.model.tokens import NAME as TOKEN_NAME
from headrace.store import PRIVILEGES, Kind
from headrace.store.database.references import check_reference

SECTIONS = ("name", "databases", "streams", "sources", "tokens", "grants")
ALL = "all"

Objects = dict[tuple[str, tuple[str, ...]], "Desired"]
"""Declared objects by kind and names."""


class Desired(msgspec.Struct, frozen=True):
    """An object that is declared.

    Attributes:
        object: the names that lead to it, as in `store.Managed`.
        settings: those that the files mention, by the names of their fields.
        marks: the places of the settings.
        mark: the place of the object's name.
        database: the database that the file names for a stream. None for the configuration database. Unset if the
            file names none, so that an existing stream is where it is.
    """

    kind: Kind
    object: tuple[str, ...]
    settings: dict[str, Any]
    marks: dict[str, Mark]
    mark: Mark
    database: str | msgspec.UnsetType | None = msgspec.UNSET

    def place(self, field: str | None) -> Mark:
        """The place of a setting, or of the object if the setting isn't mentioned."""
        return self.marks.get(field or "", self.mark)


class Database(msgspec.Struct, frozen=True):
    """A further database that is declared.

    Attributes:
        url_from: where its URL is found, `env:NAME` or `file:/path`.
        grants: what roles may do there.
        mark: the place of its name.
    """

    name: str
    url_from: str
    grants: Objects
    mark: Mark


class Declared(msgspec.Struct, frozen=True):
    """The declarations of files: a name, if they have one, the further databases by name, and the objects by kind and
    names."""

    name: str | None
    objects: Objects
    databases: dict[str, Database] = {}

    def of(self, kind: Kind) -> list[Desired]:
        """The objects of a kind."""
        return [one for one in self.objects.values() if one.kind == kind]

    def has_stream(self, name: str) -> bool:
        """Whether a stream is declared, or made by a declared capture."""
        captures = (one.settings for one in self.of("source") if one.settings["kind"] == "postgres")
        return ("stream", (name,)) in self.objects or any(one["stream"] == name for one in captures)


def declared(documents: Iterable[Node]) -> Declared:
    """Read what documents declare together.

    Raises:
        ConfigurationError: they are invalid, alone or in an `ExceptionGroup`.
    """
    problems = Problems()
    found = read(documents, problems)
    problems.raise_any()
    return found


def read(documents: Iterable[Node], problems: Problems) -> Declared:
    """As `declared`, with the problems collected."""
    reader = _Reader(problems)
    for document in documents:
        reader.document(document)
    return Declared(None if reader.name is None else reader.name.value, reader.objects, reader.databases)


class _Reader:
    """Collects the objects of documents."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.name: Node | None = None
        self.objects: Objects = {}
        self.databases: dict[str, Database] = {}

    def document(self, node: Node) -> None:
        if not self._is_mapping(node, "A configuration"):
            return
        self._check_keys(node, SECTIONS, "a configuration")
        if "name" in node.value:
            self._set_name(node.value["name"])
        for database, one in self._entries(node, "databases"):
            self._database(database, one, node.value["databases"].keys[database])
        for stream, one in self._entries(node, "streams"):
            self._stream(stream, one, node.value["streams"].keys[stream])
        for source, one in self._entries(node, "sources"):
            self._source(source, one, node.value["sources"].keys[source])
        for token, one in self._entries(node, "tokens"):
            self._token(token, one, node.value["tokens"].keys[token])
        for role, one in self._entries(node, "grants"):
            self._grants(role, one, self.objects)

    def _set_name(self, node: Node) -> None:
        if not isinstance(node.value, str) or not TOKEN_NAME.fullmatch(node.value):
            self._problems.add(node.mark, "`name` must be 1 to 64 letters, digits, '.', '_', '@' and '-'.")
        elif self.name is not None and self.name.value != node.value:
            self._problems.add(
                node.mark, f"The configuration has the name {self.name.value!r} already, in {self.name.mark}."
            )
        else:
            self.name = node

    def _database(self, name: str, node: Node, mark: Mark) -> None:
        if not self._is_mapping(node, f"The database {name!r}"):
            return
        self._check_keys(node, ("url_from", "grants"), f"the database {name!r}")
        if not NAME.fullmatch(name):
            self._problems.add(mark, f"The name {name!r:.80} can't be used for a database. {NAME_RULE}")
        if name in self.databases:
            self._problems.add(mark, f"The database {name!r} is declared already, in {self.databases[name].mark}.")
        url_from = node.value.get("url_from", Node(None, mark))
        try:
            reference = check_reference(url_from.value if isinstance(url_from.value, str) else "")
        except InvalidInput:  # its text may have a password
            self._problems.add(
                url_from.mark,
                f"`url_from` of the database {name!r} must be env:NAME for an environment variable with its URL, or file:/path for"
                " a file.",
            )
            return
        grants: Objects = {}
        for role, one in self._entries(node, "grants"):
            self._grants(role, one, grants)
        self.databases[name] = Database(name, reference, grants, mark)

    def _stream(self, name: str, node: Node, mark: Mark) -> None:
        known = fields_of("stream")
        if not self._is_mapping(node, f"The stream {name!r}", empty=True):
            return
        self._add("stream", (name,), node, known, mark, besides=("database", "consumers"))
        for consumer, one in self._entries(node, "consumers"):
            if self._is_mapping(one, f"The consumer {consumer!r}", empty=True):
                place = node.value["consumers"].keys[consumer]
                self._add("consumer", (name, consumer), one, fields_of("consumer"), place)

    def _source(self, name: str, node: Node, mark: Mark) -> None:
        if not self._is_mapping(node, f"The source {name!r}"):
            return
        kind = node.value.get("kind", Node(None, mark))
        if kind.value not in ("webhook", "postgres"):
            self._problems.add(kind.mark, f"`kind` of the source {name!r} must be 'webhook' or 'postgres'.")
            return
        known = {**fields_of(kind.value), "stream": settings_stream(kind.value)}
        self._add("source", (name,), node, known, mark, besides=("kind",))
        if ("source", (name,)) in self.objects:
            self.objects["source", (name,)].settings["kind"] = kind.value
            for required in ("stream", *(("tables",) if kind.value == "postgres" else ())):
                if required not in self.objects["source", (name,)].settings:
                    self._problems.add(mark, f"The source {name!r} needs `{required}`.")

    def _token(self, name: str, node: Node, mark: Mark) -> None:
        if self._is_mapping(node, f"The token {name!r}"):
            self._check_keys(node, ("scopes", "expires_in"), f"the token {name!r}")
            scopes = node.value.get("scopes", Node(None, mark))
            texts = scopes.plain()
            if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
                self._problems.add(
                    scopes.mark, f"`scopes` of the token {name!r} must be a list, such as [publish:orders, consume]."
                )
                return
            settings = {"scopes": texts}
            if "expires_in" in node.value:
                settings["expires_in"] = node.value["expires_in"].plain()
            self._put(Desired("token", (name,), settings, {key: one.mark for key, one in node.value.items()}, mark))

    def _grants(self, role: str, node: Node, objects: Objects) -> None:
        if not self._is_mapping(node, f"The grants of {role!r}"):
            return
        self._check_keys(node, PRIVILEGES, f"the grants of {role!r}")
        for privilege, one in node.value.items():
            streams = one.plain()
            if streams != ALL and not (
                isinstance(streams, list) and all(isinstance(stream, str) for stream in streams)
            ):
                self._problems.add(one.mark, f"`{privilege}` of the role {role!r} must be a list of streams, or {ALL}.")
            elif streams != ALL and "" in streams:  # such as an empty variable. A right without a stream is one on all
                self._problems.add(
                    one.mark,
                    f"`{privilege}` of the role {role!r} has a stream without a name. For all streams write {ALL}.",
                )
            elif privilege in PRIVILEGES:
                for stream in [""] if streams == ALL else streams:
                    self._put(Desired("grant", (role, privilege, stream), {}, {}, one.mark), objects)

    def _add(
        self, kind: Kind, names: tuple[str, ...], node: Node, known: Fields, mark: Mark, besides: tuple[str, ...] = ()
    ) -> None:
        """Add an object with its settings. A stream or consumer that occurs again is merged."""
        values = node.value or {}
        self._check_keys(node, (*known, *besides), f"the {kind} {'/'.join(names)!r}")
        settings: dict[str, Any] = {}
        marks: dict[str, Mark] = {}
        for key, one in values.items():
            if key not in known:
                continue
            setting = known[key]
            if setting.name in settings:
                self._problems.add(
                    node.keys[key],
                    f"`{key}` is another name of a setting that is given in line {marks[setting.name].line}.",
                )
                continue
            try:
                value = (
                    self._push(one)
                    if setting.kind is Push and isinstance(one.value, dict)
                    else read_setting(setting, one)
                )
                settings[setting.name], marks[setting.name] = value, one.mark
            except (ConfigurationError, InvalidInput) as error:
                self._problems.add(one.mark, error)
        database = self._database_of(values["database"]) if kind == "stream" and "database" in values else msgspec.UNSET
        self._put(Desired(kind, names, settings, marks, mark, database))

    def _database_of(self, node: Node) -> str | msgspec.UnsetType | None:
        """The database of a stream."""
        if node.value is None or (isinstance(node.value, str) and NAME.fullmatch(node.value)):
            return node.value
        self._problems.add(
            node.mark, "`database` must be the name of a database, or null for the configuration database."
        )
        return msgspec.UNSET

    def _push(self, node: Node) -> dict[str, Any]:
        """The settings of `push`."""
        known = fields_of("push")
        self._check_keys(node, known, "`push`")
        return {known[key].name: read_setting(known[key], one) for key, one in node.value.items() if key in known}

    def _put(self, one: Desired, objects: Objects | None = None) -> None:
        objects = self.objects if objects is None else objects
        before = objects.get((one.kind, one.object))
        if before is None:
            objects[one.kind, one.object] = one
            return
        if one.kind not in ("stream", "consumer"):
            self._problems.add(one.mark, f"The {one.kind} {one.object[0]!r} is declared already, in {before.mark}.")
            return
        for name, value in one.settings.items():
            if name in before.settings:
                self._problems.add(one.marks[name], f"`{name}` is set already, in {before.marks[name]}.")
            before.settings[name], before.marks[name] = value, one.marks[name]
        if one.database is not msgspec.UNSET:
            if before.database not in (msgspec.UNSET, one.database):
                self._problems.add(
                    one.mark, f"The stream {one.object[0]!r} has another `database` already, in {before.mark}."
                )
            objects[one.kind, one.object] = msgspec.structs.replace(before, database=one.database)

    def _entries(self, node: Node, section: str) -> Iterable[tuple[str, Node]]:
        found = (node.value or {}).get(section)
        if found is None or not self._is_mapping(found, f"`{section}`", empty=True):
            return ()
        return (found.value or {}).items()

    def _is_mapping(self, node: Node, what: str, *, empty: bool = False) -> bool:
        valid = isinstance(node.value, dict) or (empty and node.value is None)
        if not valid:
            self._problems.add(node.mark, f"{what} must be a mapping of names to values.")
        return valid

    def _check_keys(self, node: Node, known: Iterable[str], owner: str) -> None:
        names = list(known)
        for key, mark in node.keys.items():
            if key not in names:
                near = get_close_matches(key, names, 1)
                hint = f"Did you mean `{near[0]}`?" if near else f"It has {', '.join(names)}."
                self._problems.add(mark, f"{owner[0].upper()}{owner[1:]} has no field `{key}`. {hint}")


def settings_stream(kind: str) -> Any:
    """The setting with the stream of a source."""
    return settings_of(SPECS[kind])["stream"]
