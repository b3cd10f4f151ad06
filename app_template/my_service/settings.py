"""Settings, read once from the environment: MY_SERVICE_REGION=eu, MY_SERVICE_RETRY_AFTER=1m, and so on.

Where the messages lie is Headrace's own setting: HEADRACE_DATABASE is a Postgres URL, and without it the embedded
Postgres is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from headrace import ConfigurationError

PREFIX = "MY_SERVICE_"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be set, and what holds otherwise."""

    region: str = "us"
    """Whose orders this service ships."""
    most_at_once: int = 32
    """How many orders one process works on at a time, at most."""
    retry_after: str = "30s"
    """How long to wait for a carrier that is busy."""
    shutdown_timeout: str = "30s"
    """How long handlers may take to finish when the service is stopped."""
    spark: bool = False
    """Whether what is ordered is counted, too, by Spark. It needs `pip install -e '.[spark]'`."""
    tally_every: str = "10s"
    """How long to gather orders for one count."""


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings. Raises `ConfigurationError` for a name that is none of them, or a value of the wrong type."""
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
    try:
        return msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(PREFIX + name.upper() for name in Settings.__struct_fields__)
        raise ConfigurationError(f"The environment has a wrong setting ({error}): there are {known}.") from error
