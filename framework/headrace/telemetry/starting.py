"""Sets up telemetry, which imports OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.errors import ConfigurationError
from headrace.telemetry.settings import Statistics, Telemetry

if TYPE_CHECKING:
    from headrace.telemetry.instrumentation import Instrumentation


def start(telemetry: Telemetry, statistics: Statistics) -> Instrumentation:
    """Set up telemetry.

    Args:
        telemetry: which telemetry is wanted, and where it goes.
        statistics: returns the counts from which metrics are read, as `App.statistics` does. It is also
            called from other threads.

    Raises:
        ConfigurationError: OpenTelemetry is not installed, or its environment variables are invalid.
    """
    try:
        from headrace.telemetry.instrumentation import Instrumentation

        return Instrumentation(telemetry, statistics)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("opentelemetry", "prometheus_client"):
            raise
        raise ConfigurationError(
            f"Telemetry needs OpenTelemetry, and {error.name!r} is not installed. Run pip install 'headrace[telemetry]'."
        ) from error
