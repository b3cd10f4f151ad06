"""What is raised when there is no Spark to be had."""

from __future__ import annotations

from headrace.model.errors import HeadraceError


class SparkUnavailable(HeadraceError):
    """Spark can't be started or reached: no Java, a wrong master, a cluster or a Connect server that doesn't answer."""

    exit_code = 69  # EX_UNAVAILABLE
