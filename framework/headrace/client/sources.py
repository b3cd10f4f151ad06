"""Calls about the sources of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client.base import Base, Listed, Told, condition
from headrace.client.request import delete, get, patch, post
from headrace.model.capture import BackfillInfo, FailedChange, Finding
from headrace.model.conditions import Condition
from headrace.model.sources import SourceInfo

if TYPE_CHECKING:
    from headrace.admin.source_settings import Spec
    from headrace.admin.validation import Where
    from headrace.sources.postgres.spec import PostgresSpec

_MADE = 201
_ELSEWHERE = 30.0
"""Time limit in seconds for calls in which the server queries the captured database."""


class _Deleted(msgspec.Struct):
    """The answer to the removal of a source."""

    left: str | None = None


class Sources(Base):
    """The calls about sources. See `headrace.admin`."""

    async def sources(self) -> list[SourceInfo]:
        """List all sources by name."""
        return [one.info for one in (await self._ask(get("sources"), Listed[Told[SourceInfo]])).data]

    async def source(self, ref: str) -> SourceInfo:
        """Return one source."""
        return (await self._ask(get("sources", ref), Told[SourceInfo])).info

    async def create_source(self, spec: Spec) -> bool:
        """Create a source. Returns whether it is new. A source that exists with equal settings
        is left as it is."""
        return (await self._send(post("sources", **_body(spec)))).status == _MADE

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a source. Returns the changed source."""
        if isinstance(changes.get("where"), Condition):
            changes["where"] = condition(changes["where"])
        return (await self._ask(patch("sources", ref, **changes), Told[SourceInfo])).info

    async def delete_source(self, ref: str, *, force: bool = False) -> str | None:
        """Delete a source. Its published messages stay. With `force`, returns what was left
        behind in the captured database."""
        return (await self._ask(delete("sources", ref, wait=_ELSEWHERE, force=force or None), _Deleted)).left

    # --- sources that capture tables

    async def pause_source(self, ref: str) -> SourceInfo:
        """Stop capturing until `resume_source`."""
        return (await self._ask(post("sources", ref, "pause"), Told[SourceInfo])).info

    async def resume_source(self, ref: str, *, anew: bool = False) -> SourceInfo:
        """Resume capturing at the position of the pause. With `anew`, start again after a lost slot."""
        return (await self._ask(post("sources", ref, "resume", anew=anew or None), Told[SourceInfo])).info

    async def check_source(self, ref: str) -> list[Finding]:
        """Check whether a source's database meets all requirements for capturing its tables."""
        return (await self._ask(post("sources", ref, "check", wait=_ELSEWHERE), Listed[Finding])).data

    async def check_spec(self, spec: PostgresSpec) -> list[Finding]:
        """Check a source that doesn't exist yet, or changed settings of one that exists."""
        return (await self._ask(post("source-check", wait=_ELSEWHERE, **_body(spec)), Listed[Finding])).data

    async def start_backfill(
        self, ref: str, tables: Sequence[str] | None = None, where: Where = None, rate: int | None = None
    ) -> list[BackfillInfo]:
        """Start a backfill of each table, from its first row, while its changes are captured.
        Returns the backfills."""
        request = post(
            "sources", ref, "backfills", wait=_ELSEWHERE, tables=None if tables is None else list(tables), where=condition(where),
            rate=rate,
        )  # fmt: skip
        return (await self._ask(request, Listed[BackfillInfo])).data

    async def backfills(self, ref: str | None = None) -> list[BackfillInfo]:
        """List the last 100 backfills of a source, or of all sources, newest first."""
        request = get("backfills") if ref is None else get("sources", ref, "backfills")
        return (await self._ask(request, Listed[BackfillInfo])).data

    async def cancel_backfills(self, ref: str, id: str | None = None) -> int:  # noqa: A002 - the record's word
        """Cancel a backfill by its id, or all backfills of a source. Returns how many had not ended."""
        return await self._count(post("sources", ref, "backfills", "cancel", id=id), "cancelled")

    async def failures(self, ref: str, *, above: int = 0, limit: int = 100) -> list[FailedChange]:
        """List the changes that could not be made into messages, with an id above `above`,
        oldest first, at most `limit`."""
        request = get("sources", ref, "failures", above=above or None, limit=limit)
        return (await self._ask(request, Listed[FailedChange])).data

    async def retry_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Schedule failed changes for another try, all of them or those with the given ids.
        Returns the number of changes."""
        return await self._count(post("sources", ref, "failures", "retry", ids=_ids(ids)), "retried")

    async def drop_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Delete failed changes, all of them or those with the given ids. Returns the number of changes."""
        return await self._count(post("sources", ref, "failures", "drop", ids=_ids(ids)), "dropped")


def _ids(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _body(spec: Spec) -> dict[str, Any]:
    """Return the request body that creates a source, without the settings that were left at their defaults."""
    from headrace.sources.webhook import WebhookSpec  # cheaper to import than `PostgresSpec`

    kind = "webhook" if isinstance(spec, WebhookSpec) else "postgres"
    return {"kind": kind, "name": spec.name, "stream": spec.stream, **spec.given()}
