"""Upcasters: bring the data of older versions to the present one, one version at a time.

    version 1 ──upcaster(from_version=1)──▶ version 2 ──upcaster(from_version=2)──▶ version 3, the present one

The pattern is that of event-sourced systems, see Greg Young, "Versioning in an Event Sourced System", and
the `eventsourcing` library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.model.errors import ConfigurationError, InvalidData
from headrace.runtime.handlers.signature import is_async, name_of

Upcaster = Callable[[Any], Any]
U = TypeVar("U", bound=Upcaster)

MAX_VERSION = 1_000_000
"""The highest version that a header may name."""


class Upcasters:
    """The upcasters of one stream.

    Args:
        stream: its name, for errors.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._steps: dict[int, Upcaster] = {}

    @property
    def version(self) -> int:
        """The present version: the one after the last upcaster, or 1."""
        return max(self._steps, default=0) + 1

    def add(self, from_version: int, function: U) -> U:
        """Add the upcaster of a version. Raises `ConfigurationError`."""
        if isinstance(from_version, bool) or not isinstance(from_version, int) or not 1 <= from_version < MAX_VERSION:
            raise ConfigurationError(
                f"from_version={from_version!r} of an upcaster must be the version that it takes, from 1 to {MAX_VERSION - 1:,}."
            )
        if not callable(function) or is_async(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"An upcaster of {self._stream!r} must be a plain function, which takes the data of a version and returns that of the next."
            )
        if from_version in self._steps:
            raise ConfigurationError(
                f"The stream {self._stream!r} has two upcasters from version {from_version}: {name_of(self._steps[from_version])!r} and"
                f" {name_of(function)!r}. Keep one of them."
            )
        self._steps[from_version] = function
        return function

    def check(self) -> None:
        """Raise `ConfigurationError` if a version before the present one has no upcaster."""
        missing = [version for version in range(1, self.version) if version not in self._steps]
        if missing:
            raise ConfigurationError(
                f"The stream {self._stream!r} is at version {self.version}, and has no upcaster from version {missing[0]}: add"
                f" @….upcaster(from_version={missing[0]})."
            )

    def apply(self, data: Any, version: int) -> Any:
        """Bring the data of a version to the present one.

        Raises:
            InvalidData: an upcaster returned nothing.
            Errors of upcasters are raised unchanged.
        """
        for step in range(version, self.version):
            upcaster = self._steps[step]
            data = upcaster(data)
            if data is None:
                raise InvalidData(
                    f"The upcaster {name_of(upcaster)!r} of {self._stream!r} returned None: return the data of version {step + 1}."
                )
        return data
