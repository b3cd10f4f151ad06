"""sources: store the settings of sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.capture import CaptureInfo
from headrace.model.errors import UnknownSource
from headrace.model.pages import Page
from headrace.model.sources import SourceInfo
from headrace.model.text.masking import HIDDEN, masked
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of


async def create_source(executor: Executor, name: str, kind: str, stream: str, settings: Mapping[str, Any]) -> bool:
    """Create a source. An existing source of that name stays unchanged. Returns whether it is new. Raises
    `UnknownStream`.
    """
    new: bool = await executor.fetchval(
        "select headrace_internal.create_source($1, $2, $3, $4)", name, kind, stream, _json(settings)
    )
    return new


async def sources(
    executor: Executor,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> Page[SourceInfo]:
    """Sources by name, without their secrets: the first ones, or the last ones if `before` is given.

    Args:
        after, before: only those whose name comes after or before this one.
        limit: the maximum number. None for all.
        max_bytes: return no more sources once the settings and the captures of those found have this size, as text.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.source_page($1, $2, $3, $4)", after, before, limit, max_bytes
    )
    return await page_of(
        rows,
        lambda row: without_secrets(_source(row)),
        limit=limit,
        max_bytes=max_bytes,
        sized=("settings", "capture"),
        backwards=before is not None,
    )


async def source(executor: Executor, ref: str) -> SourceInfo:
    """One source by its id or name, without its secrets. Raises `UnknownSource`."""
    return without_secrets(await source_with_secrets(executor, ref))


async def source_with_secrets(executor: Executor, ref: str) -> SourceInfo:
    """One source by its id or name, with its secrets. Raises `UnknownSource`."""
    # Postgres accepts no NUL, not even in a query.
    row = (
        None if "\0" in ref else await executor.fetchrow("select * from headrace_internal.source_info($1) limit 1", ref)
    )
    if row is None:
        raise UnknownSource(f"The source {ref!r} does not exist. Create it, or correct the name.")
    return _source(row)


async def webhook_sources(executor: Executor, names: Sequence[str]) -> list[SourceInfo]:
    """The webhook sources with these names, with their secrets, to check signatures."""
    rows = await executor.fetch("select * from headrace_internal.webhook_sources($1)", list(names))
    return [_source(row) for row in rows]


async def lock_source(executor: Executor, id: str) -> SourceInfo:  # noqa: A002 - the record's word
    """Lock a source, by its id, until the end of the transaction, and return it with its secrets. Raises
    `UnknownSource`.
    """
    if not await executor.fetchval("select headrace_internal.lock_source($1)", id):
        raise _gone()
    return await source_with_secrets(executor, id)


async def edit_source(executor: Executor, id: str, settings: Mapping[str, Any]) -> None:  # noqa: A002 - the record's word
    """Replace all settings, by the source's id. Raises `UnknownSource`."""
    if not await executor.fetchval("select headrace_internal.edit_source($1, $2)", id, _json(settings)):
        raise _gone()


async def delete_source(executor: Executor, id: str) -> None:  # noqa: A002
    """Delete a source, by its id. The messages that it published stay. Raises `UnknownSource`."""
    if not await executor.fetchval("select headrace_internal.delete_source($1)", id):
        raise UnknownSource("The source no longer exists.")


def _gone() -> UnknownSource:
    return UnknownSource("The source no longer exists. Create it again.")


def _json(settings: Mapping[str, Any]) -> str:
    return msgspec.json.encode(settings).decode()


def _source(row: Any) -> SourceInfo:
    found = dict(row)
    found["id"], found["stream_id"] = str(found["id"]), str(found["stream_id"])
    capture = found.pop("capture")
    settings = msgspec.json.decode(found.pop("settings"))
    return SourceInfo(
        **found, settings=settings, capture=None if capture is None else msgspec.json.decode(capture, type=CaptureInfo)
    )


def without_secrets(source: SourceInfo) -> SourceInfo:
    """The source with its secrets hidden."""
    settings = dict(source.settings)
    if settings.get("secrets"):
        settings["secrets"] = [HIDDEN] * len(settings["secrets"])
    if settings.get("database"):
        settings["database"] = masked(settings["database"])
    return msgspec.structs.replace(source, settings=settings)
