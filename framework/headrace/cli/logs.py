"""Logging: readable lines on standard error."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

LogLevel = Literal["debug", "info", "warning", "error"]

LogLevelOption = Annotated[
    LogLevel, Parameter(name="--log-level", env_var="HEADRACE_LOG_LEVEL", help="What to log, to standard error.")
]


def set_up_logging(level: LogLevel, member: int | None = None) -> None:
    """Log lines of at least `level`. `member` is the number of this process among several.

    An application that has set up logging itself keeps its own handlers.
    """
    who = "" if member is None else f"[{member}] "
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s",
    )
