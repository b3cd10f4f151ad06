#!/usr/bin/env bash
# opentelemetry-exporter-prometheus 0.66b2 (Python): one exponential histogram takes all metrics of the process from Prometheus.
#
# Seen:     a counter and a histogram are exposed. A view gives the histogram ExponentialBucketHistogramAggregation. The scrape
#           is answered with the counter until the histogram has its first value. From then on each scrape is answered with
#           status 500, and collecting raises AttributeError: 'ExponentialHistogramDataPoint' object has no attribute 'value'.
# Expected: a native histogram, as OpenTelemetry's specification of the compatibility with Prometheus says, or all metrics
#           but this one. The exporter has a warning "Unsupported metric data" for that, which is never reached.
# Why:      the value of each data point is read before the kind of the metric is looked at.
#
# Needs Python 3.11 or newer and pip. Exits with 0 while the behaviour is as described.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
	'opentelemetry-sdk==1.45.2' 'opentelemetry-exporter-prometheus==0.66b2' 'prometheus-client==0.26.0'

cat > "$folder/scrape.py" <<'PYTHON'
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client import REGISTRY, generate_latest, start_http_server


def scrape():
    """The status, and whether the counter is in the answer."""
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            return answer.status, "handled_total{" in answer.read().decode()
    except HTTPError as error:
        return error.code, "handled_total{" in error.read().decode()


view = View(instrument_name="duration", aggregation=ExponentialBucketHistogramAggregation())
meter = MeterProvider([PrometheusMetricReader()], views=[view]).get_meter("queues")
server, _ = start_http_server(0, "127.0.0.1")
meter.create_counter("handled").add(1)
duration = meter.create_histogram("duration", "s")
seen = [scrape()]
duration.record(0.25)
seen += [scrape(), scrape()]
for title, (status, counted) in zip(("before a value of the histogram", "after it", "again"), seen, strict=True):
    print(f"{title}: status {status}, the counter is {'there' if counted else 'missing'}", flush=True)
try:
    generate_latest(REGISTRY)
    raised = None
except AttributeError as error:
    raised = str(error)
print(f"collecting raises: {raised}")
server.shutdown()
as_described = seen == [(200, True), (500, False), (500, False)] and raised is not None and "ExponentialHistogram" in raised
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/scrape.py" 2> "$folder/log" || { tail -n 5 "$folder/log"; echo "CHANGED: not as described"; exit 1; }
echo "As described: the counter is gone with the first value of the histogram."
