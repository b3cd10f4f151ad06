"""The modules whose functions a source that is created or changed over HTTP may name as its transform."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.errors import ConfigurationError
from headrace.server.errors import invalid

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class TransformModules:
    """Checks that the operator allows a transform.

    Args:
        modules: names of modules. A package allows its submodules.

    Raises:
        ConfigurationError: a name is invalid.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        for module in modules:
            if not _MODULE.fullmatch(module):
                raise ConfigurationError(
                    f"--transforms {module!r:.80} is not a module. Write its name, such as shop.capture."
                )
        self._modules = tuple(modules)

    def check(self, name: str) -> None:
        """Refuse a transform, `module:name`, that the operator does not allow. Raises `Problem`, 422."""
        module, _, function = name.partition(":")
        special = any(part.startswith("__") for part in (*module.split("."), function))
        if special or not any(module == one or module.startswith(f"{one}.") for one in self._modules):
            raise invalid(
                f"transform={name!r:.80} is not allowed over HTTP. Start the server with `headrace serve --transforms MODULE`"
                " to allow a module, or set the transform on the command line with the database.",
                "transform",
                name[:80],
            )

    def check_settings(self, settings: Mapping[str, Any], existing: Mapping[str, Any] | None = None) -> None:
        """Check the transform among settings of a source. The one that the source already has is allowed. Raises `Problem`."""
        name = settings.get("transform")
        if isinstance(name, str) and name != (existing or {}).get("transform"):
            self.check(name)
