"""Sources: see, make, change, remove."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import store
from headrace.app.admin.base import Base
from headrace.model.errors import InvalidInput
from headrace.model.sources import SourceExists, SourceInfo
from headrace.sources.webhook import WebhookSpec
from headrace.store.info import HIDDEN

_CHANGEABLE = ("key", "signature", "secrets", "keep_headers", "max_body")


class Sources(Base):
    """The calls about sources. `ref` is a source's name or its id."""

    async def sources(self) -> list[SourceInfo]:
        """All sources, by name."""
        return await store.sources(self._database)

    async def source(self, ref: str) -> SourceInfo:
        """One source. Raises `UnknownSource`."""
        return await store.source(self._database, ref)

    async def create_source(self, spec: WebhookSpec) -> bool:
        """Create a webhook source; one that exists with these very settings is left as it is.

        Returns:
            Whether it is new.

        Raises:
            SourceExists: it exists with other settings.
            UnknownStream: create the stream first.
        """
        if await store.create_source(self._database, spec.name, "webhook", spec.stream, spec.settings()):
            return True
        there = await store.source_with_secrets(self._database, spec.name)
        differing = _differing(there, spec)
        if differing:
            told = ", ".join(f"{name} is {old!r} and not {new!r}" for name, (old, new) in differing.items())
            raise SourceExists(
                f"The source {spec.name!r} exists with other settings ({told}): edit it, or take another name."
            )
        return False

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a webhook source, from its next deliveries on; servers notice within two seconds.

        Args:
            changes: settings of `WebhookSpec`, but for its name and its stream.

        Returns:
            The source as it is now.

        Raises:
            InvalidInput: what can't be changed.
            ConfigurationError: settings that contradict each other.
            UnknownSource.
        """
        for name in changes:
            if name not in _CHANGEABLE:
                raise InvalidInput(f"{name} of a source can't be changed; these can: {', '.join(_CHANGEABLE)}.")
        there = await store.source_with_secrets(self._database, ref)
        if there.kind != "webhook":
            raise InvalidInput(f"The source {there.name!r} is no webhook source.")
        try:
            spec = WebhookSpec.stored(there.name, there.stream, {**there.settings, **changes})
        except msgspec.ValidationError as error:
            raise InvalidInput(f"A setting has a value that can't be: {error}.") from error
        await store.edit_source(self._database, there.id, spec.settings())
        return await self.source(there.id)

    async def delete_source(self, ref: str) -> None:
        """Remove a source: what is delivered to it from now on is refused. What it has published stays. Raises `UnknownSource`."""
        await store.delete_source(self._database, (await self.source(ref)).id)


def _differing(there: SourceInfo, spec: WebhookSpec) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, {setting: (there, given)}, without telling secrets."""
    if there.kind != "webhook":
        return {"kind": (there.kind, "webhook")}
    old, new = (
        {"stream": one.stream, **one.settings()}
        for one in (WebhookSpec.stored(there.name, there.stream, there.settings), spec)
    )
    return {
        name: (HIDDEN, "others") if name == "secrets" else (value, new[name])
        for name, value in old.items()
        if value != new[name]
    }
