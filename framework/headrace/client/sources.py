"""Sources of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.client.base import Base, Listed, Told
from headrace.client.request import delete, get, patch, post
from headrace.model.sources import SourceInfo

if TYPE_CHECKING:
    from headrace.sources.webhook import WebhookSpec

_MADE = 201


class Sources(Base):
    """The calls about sources; see `headrace.app.admin`."""

    async def sources(self) -> list[SourceInfo]:
        """All sources, by name."""
        return [one.info for one in (await self._ask(get("sources"), Listed[Told[SourceInfo]])).data]

    async def source(self, ref: str) -> SourceInfo:
        """One source."""
        return (await self._ask(get("sources", ref), Told[SourceInfo])).info

    async def create_source(self, spec: WebhookSpec) -> bool:
        """Create a webhook source; one that exists with these very settings is left as it is. Returns whether it is new."""
        answer = await self._send(post("sources", kind="webhook", name=spec.name, stream=spec.stream, **spec.given()))
        return answer.status == _MADE

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a webhook source. Returns the source as it is now."""
        return (await self._ask(patch("sources", ref, **changes), Told[SourceInfo])).info

    async def delete_source(self, ref: str) -> None:
        """Remove a source. What it has published stays."""
        await self._send(delete("sources", ref))
