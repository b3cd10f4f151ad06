"""Options shared by commands of `headrace spark`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.model.errors import ConfigurationError
from headrace_spark.session.settings import SparkSettings

JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON, for programs.")
]


ShipOption = Annotated[
    list[str] | None,
    Parameter(
        name="--ship",
        negative="",
        show_default=False,
        help="A module, a package or a path that a cluster's executors need, such as . or service.py. Headrace's own code is sent with it. May be repeated. Without it: HEADRACE_SPARK_SHIP.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """The options that say where Spark runs."""

    master: Annotated[
        str | None,
        Parameter(
            name="--master",
            show_default=False,
            help="A master: local[*], local[4], spark://host:7077, yarn, k8s://https://host:6443. Without it: HEADRACE_SPARK_MASTER, or local[*].",
        ),
    ] = None
    remote: Annotated[
        str | None,
        Parameter(
            name="--remote",
            show_default=False,
            help="A Spark Connect server, such as sc://host:15002, instead of a master. Without it: HEADRACE_SPARK_REMOTE.",
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        Parameter(
            name="--conf",
            negative="",
            show_default=False,
            help="Spark's own configuration, such as spark.driver.memory=4g; may be given several times.",
        ),
    ] = None
    ship: ShipOption = None

    def settings(self) -> SparkSettings:
        """The options as settings of the session. Raises `ConfigurationError`."""
        pairs = [pair.partition("=") for pair in self.conf or ()]
        for key, equals, _ in pairs:
            if not equals:
                raise ConfigurationError(
                    f"--conf {key!r} has no value. Write a key and a value, such as spark.driver.memory=4g."
                )
        conf = {key: value for key, _, value in pairs}
        return SparkSettings(master=self.master, remote=self.remote, ship=tuple(self.ship or ()), conf=conf)
