"""Settings, read once from the environment: MY_SERVICE_REGION=eu, MY_SERVICE_RETRY_AFTER=1m, and so on.

The database is Headrace's own setting. HEADRACE_DATABASE is a Postgres URL. Without it the embedded
Postgres is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from headrace import ConfigurationError

PREFIX = "MY_SERVICE_"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings and their defaults."""

    region: str = "us"
    """The region of the orders that this service ships."""
    most_at_once: int = 32
    """Maximum number of orders that one process handles at a time."""
    retry_after: str = "30s"
    """How long to wait for a carrier that is busy."""
    shutdown_timeout: str = "30s"
    """How long handlers may take to finish when the service is stopped."""
    spark: bool = False
    """Whether Spark counts the ordered items, too. It needs `pip install -e '.[spark]'`."""
    tally_every: str = "10s"
    """How long to gather orders for one count."""


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises `ConfigurationError` for an unknown name, or a value of the wrong type."""
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
    try:
        return msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(PREFIX + name.upper() for name in Settings.__struct_fields__)
        raise ConfigurationError(
            f"The environment has an invalid setting: {error}. The settings are {known}."
        ) from error
