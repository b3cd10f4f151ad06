"""Telemetry: traces and metrics with OpenTelemetry, by its conventions for messaging. No other package uses
OpenTelemetry.

    settings         which telemetry is wanted, and where it goes
    providers        the SDK and its exporters, if Headrace has to set them up
    starting         sets telemetry up
    instrumentation  the calls that the runtime makes: publish, lease, process, settle
      tracing        spans
      carrier        the trace context in a message's headers
      metering       histograms and counters
      series         forgets the series of what is gone
      observables    observable gauges and counters, read at collection

Only `settings` is imported while telemetry is off. It imports nothing of OpenTelemetry.
"""

from headrace.telemetry.settings import Telemetry

__all__ = ["Telemetry"]
