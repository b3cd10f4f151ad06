"""Settings of the Spark session."""

from __future__ import annotations

import msgspec


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the process's Spark session is made.

    Attributes:
        master: a master URL, such as `local[4]` or `spark://host:7077`.
        remote: a Spark Connect server, such as `sc://host:15002`.
        app_name: as Spark shows it.
        conf: Spark's own configuration.
        python: the interpreter of the workers.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str | None = None
    conf: dict[str, str] = {}
    python: str | None = None
