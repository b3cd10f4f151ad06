"""Writes what exists in the databases of a server as a configuration file. Secrets become references to variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from headrace import store
from headrace.admin.admin import Admin
from headrace.admin.configuration.documents import write_document
from headrace.admin.configuration.fields import duration, field_name, fields_of, readable
from headrace.admin.configuration.objects import consumers, streams
from headrace.admin.configuration.parts import opened_all
from headrace.admin.source_settings import stored_spec
from headrace.model.settings import Setting, settings_of
from headrace.model.specs import ConsumerSpec
from headrace.model.text.masking import HIDDEN, masked, masked_push_url
from headrace.store import Database, Executor, PlaceKind

_NONE: Mapping[PlaceKind, Set[str]] = {"stream": frozenset(), "source": frozenset()}


class Exported(msgspec.Struct, frozen=True):
    """A configuration.

    Attributes:
        document: what the file says.
        variables: the values of the variables that it refers to, which are secret.
        left_out: what is not in the file, because another database has the name.
    """

    document: dict[str, Any]
    variables: dict[str, str]
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The file, in YAML."""
        return write_document(self.document)


async def export(database: Database, name: str | None = None, *, now: datetime | None = None) -> Exported:
    """Read all streams, consumers, sources, valid tokens and grants, also of further databases. Settings that have their
    default are left out.

    Args:
        database: the configuration database. Further ones are opened.
        name: the name of the configuration in the file.

    Raises:
        NotGranted: a database's role is not a member of the schema's owner.
        StoreUnavailable: a database can't be reached. Without it the file would not be complete.
    """
    store.require_membership(database, "export configurations")
    document: dict[str, Any] = {} if name is None else {"name": name}
    document |= {"databases": {}, "streams": {}, "sources": {}}
    export_into = _Export(document, _Secrets(), [])
    await export_into.objects(database)
    async with opened_all(database) as others:
        references = {one.name: one.url_from for one in await store.databases(database)}
        for other, opened in others.items():
            streams = await export_into.objects(opened, await _elsewhere(database, opened, other), other)
            grants = [one for one in await store.grants(opened) if one.stream is None or one.stream in streams]
            document["databases"][other] = {"url_from": references[other]} | (
                {"grants": _grants(grants)} if grants else {}
            )
    time = now or datetime.now(UTC)
    document["tokens"] = {
        token.name: _token(token)
        for token in await Admin(database).tokens()
        if token.revoked_at is None and (token.expires_at is None or token.expires_at > time)
    }
    document["grants"] = _grants(await store.grants(database))
    return Exported(
        {section: value for section, value in document.items() if value},
        export_into.secrets.variables,
        tuple(export_into.left_out),
    )


async def _elsewhere(home: Database, database: Database, name: str) -> dict[PlaceKind, set[str]]:
    """The streams and sources of a further database whose names lead to another one."""
    admin = Admin(database)
    streams = [one.name for one in await admin.streams()]
    sources = [one.name for one in await admin.sources()]
    return {
        "stream": set(await store.names_elsewhere(home, "stream", name, streams)),
        "source": set(await store.names_elsewhere(home, "source", name, sources)),
    }


class _Export(NamedTuple):
    """A file that is being written, with the objects of one database after the other."""

    found: dict[str, Any]
    secrets: _Secrets
    left_out: list[str]

    async def objects(
        self, database: Database, elsewhere: Mapping[PlaceKind, Set[str]] = _NONE, name: str | None = None
    ) -> dict[str, Any]:
        """Add the streams, consumers and sources of a database. Returns its streams, as far as requests reach them."""
        admin = Admin(database)
        of_database = {} if name is None else {"database": name}
        streams: dict[str, Any] = {}
        for stream in await admin.streams():
            if stream.name in elsewhere["stream"]:
                self.left_out.append(f"stream {stream.name} of the database {name!r}")
            else:
                streams[stream.name] = {**of_database, **await _stream(database, stream.name)}
        for consumer in await store.consumers(database, look=0):
            of_stream = streams.get(consumer.stream)
            spec = await consumers.present(database, consumer.stream, consumer.name)
            if of_stream is not None and spec is not None:
                of_stream.setdefault("consumers", {})[consumer.name] = _consumer(spec, self.secrets)
        for source in await admin.sources():
            if source.name in elsewhere["source"] or source.stream not in streams:
                self.left_out.append(f"source {source.name} of the database {name!r}")
            else:
                self.found["sources"][source.name] = await _source(database, source.name, self.secrets)
        self.found["streams"].update(streams)
        return streams


class _Secrets:
    """Replaces secrets by references to variables, and keeps the values."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def reference(self, value: str, *words: str) -> str:
        """Return a reference to a new variable whose name is made of these words."""
        name = first = re.sub(r"[^A-Z0-9]+", "_", "_".join(("secret", *words)).upper())
        number = 2
        while name in self.variables:
            name, number = f"{first}_{number}", number + 1
        self.variables[name] = value
        return f"${{{name}}}"


async def _stream(executor: Executor, name: str) -> dict[str, Any]:
    spec = await streams.present(executor, name)
    return {} if spec is None else _given(fields_of("stream"), msgspec.structs.asdict(spec))


def _consumer(spec: ConsumerSpec, secrets: _Secrets) -> dict[str, Any]:
    found = _given(fields_of("consumer"), msgspec.structs.asdict(spec))
    if spec.push is None:
        return found
    push = _given(fields_of("push"), {name: getattr(spec.push, name) for name in spec.push.__struct_fields__})
    words = (spec.stream, spec.name, "push")
    if masked_push_url(spec.push.url) != spec.push.url:  # a path often contains a token
        push["url"] = secrets.reference(spec.push.url, *words, "url")
    if spec.push.headers:
        push["headers"] = {key: secrets.reference(value, *words, key) for key, value in spec.push.headers.items()}
    if spec.push.secret:
        push["secret"] = secrets.reference(spec.push.secret, *words, "secret")
    return {**found, "push": push}


async def _source(executor: Executor, name: str, secrets: _Secrets) -> dict[str, Any]:
    source = await store.source_with_secrets(executor, name)
    spec = stored_spec(source)
    found = _given(fields_of(source.kind), {one: getattr(spec, one) for one in settings_of(type(spec))})
    if found.get("secrets"):
        found["secrets"] = [secrets.reference(value, name) for value in source.settings["secrets"]]
    database = source.settings.get("database")
    if database and HIDDEN in masked(database):
        found["database"] = secrets.reference(database, name, "database")
    return {"kind": source.kind, "stream": source.stream, **found}


def _token(token: Any) -> dict[str, Any]:
    if token.expires_at is None:
        return {"scopes": list(token.scopes)}
    lifetime = round((token.expires_at - token.created_at).total_seconds(), 3)
    return {"scopes": list(token.scopes), "expires_in": duration(lifetime)}


def _grants(grants: list[store.Grant]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for grant in grants:
        if not grant.exists:
            continue
        of_role = found.setdefault(grant.role, {})
        if grant.stream is None:
            of_role[grant.privilege] = "all"
        elif of_role.get(grant.privilege) != "all":  # the right on all streams has those on each
            of_role.setdefault(grant.privilege, []).append(grant.stream)
    return found


def _given(known: Mapping[str, Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from their default, as a file has them."""
    return {
        field_name(setting): escaped(readable(setting, values[setting.name]))
        for name, setting in known.items()
        if name == field_name(setting) and (setting.required or values[setting.name] != setting.default)
    }


def escaped(value: Any) -> Any:
    """A value without references to variables."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: escaped(one) for key, one in value.items()}
    return [escaped(one) for one in value] if isinstance(value, list) else value
