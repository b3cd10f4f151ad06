"""Sources of a server."""

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
    from headrace.app.admin.given import Where
    from headrace.app.admin.specs import Spec
    from headrace.sources.postgres.spec import PostgresSpec

_MADE = 201
_ELSEWHERE = 30.0
"""Seconds that a server may take to ask the database that is captured."""


class _Deleted(msgspec.Struct):
    """What became of a source that was removed."""

    left: str | None = None


class Sources(Base):
    """The calls about sources; see `headrace.app.admin`."""

    async def sources(self) -> list[SourceInfo]:
        """All sources, by name."""
        return [one.info for one in (await self._ask(get("sources"), Listed[Told[SourceInfo]])).data]

    async def source(self, ref: str) -> SourceInfo:
        """One source."""
        return (await self._ask(get("sources", ref), Told[SourceInfo])).info

    async def create_source(self, spec: Spec) -> bool:
        """Create a source; one that exists with these very settings is left as it is. Returns whether it is new."""
        return (await self._send(post("sources", **_body(spec)))).status == _MADE

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a source. Returns the source as it is now."""
        if isinstance(changes.get("where"), Condition):
            changes["where"] = condition(changes["where"])
        return (await self._ask(patch("sources", ref, **changes), Told[SourceInfo])).info

    async def delete_source(self, ref: str, *, force: bool = False) -> str | None:
        """Remove a source. What it has published stays. Returns what was left behind of it elsewhere by `force`."""
        return (await self._ask(delete("sources", ref, wait=_ELSEWHERE, force=force or None), _Deleted)).left

    # --- of those that capture tables

    async def pause_source(self, ref: str) -> SourceInfo:
        """Capture nothing more until `resume_source`."""
        return (await self._ask(post("sources", ref, "pause"), Told[SourceInfo])).info

    async def resume_source(self, ref: str, *, anew: bool = False) -> SourceInfo:
        """Capture again from where it was paused; or `anew`, for a slot that is lost."""
        return (await self._ask(post("sources", ref, "resume", anew=anew or None), Told[SourceInfo])).info

    async def check_source(self, ref: str) -> list[Finding]:
        """Look whether a source's database has all that it takes to capture its tables."""
        return (await self._ask(post("sources", ref, "check", wait=_ELSEWHERE), Listed[Finding])).data

    async def check_spec(self, spec: PostgresSpec) -> list[Finding]:
        """The same of a source that is yet to be made, or of other settings of one that is there."""
        return (await self._ask(post("source-check", wait=_ELSEWHERE, **_body(spec)), Listed[Finding])).data

    async def start_backfill(
        self, ref: str, tables: Sequence[str] | None = None, where: Where = None, rate: int | None = None
    ) -> list[BackfillInfo]:
        """Have tables read from their first row on, while their changes go on. Returns a backfill for each."""
        request = post(
            "sources", ref, "backfills", wait=_ELSEWHERE, tables=None if tables is None else list(tables), where=condition(where),
            rate=rate,
        )  # fmt: skip
        return (await self._ask(request, Listed[BackfillInfo])).data

    async def backfills(self, ref: str | None = None) -> list[BackfillInfo]:
        """The last 100 backfills of a source, or of all, the newest first."""
        request = get("backfills") if ref is None else get("sources", ref, "backfills")
        return (await self._ask(request, Listed[BackfillInfo])).data

    async def cancel_backfills(self, ref: str, id: str | None = None) -> int:  # noqa: A002 - the record's word
        """End a backfill by its id, or all of a source. Returns how many had not ended yet."""
        return await self._count(post("sources", ref, "backfills", "cancel", id=id), "cancelled")

    async def failures(self, ref: str, *, above: int = 0, limit: int = 100) -> list[FailedChange]:
        """Changes that could not be made into messages, with an id above `above`, the oldest first, at most `limit`."""
        request = get("sources", ref, "failures", above=above or None, limit=limit)
        return (await self._ask(request, Listed[FailedChange])).data

    async def retry_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Have failed changes tried again, all or these. Returns how many will be."""
        return await self._count(post("sources", ref, "failures", "retry", ids=_ids(ids)), "retried")

    async def drop_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Forget failed changes, all or these. Returns how many."""
        return await self._count(post("sources", ref, "failures", "drop", ids=_ids(ids)), "dropped")


def _ids(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _body(spec: Spec) -> dict[str, Any]:
    """A source to be made. What was set to a default need not be told."""
    from headrace.sources.webhook import WebhookSpec  # which costs less than the other

    kind = "webhook" if isinstance(spec, WebhookSpec) else "postgres"
    return {"kind": kind, "name": spec.name, "stream": spec.stream, **spec.given()}
