"""Dependencies: what a handler takes besides its message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.wiring import Call


def dependency_of(annotation: Any) -> Any | None:
    """The type that is asked for, if the annotation marks a dependency."""
    return None


class Dependencies:
    """All that handlers may ask for."""

    def resolve(self, call: Callable[..., Any], wanted: Mapping[str, Any]) -> Call:
        """The call with its dependencies found anew for each delivery, and given up after it."""
        return call
