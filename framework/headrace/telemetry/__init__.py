"""Telemetry: traces and metrics by OpenTelemetry, after its conventions for messaging. The only user of OpenTelemetry.

    settings         what is wanted, and where it goes
    providers        the SDK and its exporters, when they are ours to set up
    instrumentation  what the runtime calls: publishing, leasing, process, settling
        tracing      spans                        carrier   the trace in a message's headers
        metering     histograms and counters      board     gauges and counters, read when somebody collects them

Only `settings` is imported while telemetry is off, and that imports nothing of OpenTelemetry.
"""

from headrace.telemetry.settings import Telemetry

__all__ = ["Telemetry"]
