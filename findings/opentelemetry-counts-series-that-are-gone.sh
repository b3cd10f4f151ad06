#!/usr/bin/env bash
# opentelemetry-sdk 1.45.2 (Python): an observable gauge counts attribute sets that are no longer observed towards its limit.
#
# Seen:     a callback observes 1,500 attribute sets, and from the second collection on 1,500 others. At most 1,500 exist at a
#           time, below the limit of 2,000. Yet from the second collection on there are 500 series, and one with the attribute
#           otel.metric.overflow that stands for the other 1,000 and has the value of one of them. It stays so for as long as
#           the process lives, also when the callback observes two sets that are new, and nothing else.
# Expected: 1,500 series in each collection. The specification of the SDK (metrics, "Asynchronous instrument cardinality limits")
#           says that aggregators of asynchronous instruments should prefer the attributes observed first in the callback.
# Why:      the aggregations of a view are kept by attribute set, and none is removed when a callback no longer observes it.
#
# Needs Python 3.11 or newer and pip. Exits with 0 while the behaviour is as described.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'opentelemetry-sdk==1.45.2'

cat > "$folder/gauge.py" <<'PYTHON'
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

existing = []
reader = InMemoryMetricReader()
meter = MeterProvider(metric_readers=[reader]).get_meter("queues")
meter.create_observable_gauge("lag", callbacks=[lambda _: [Observation(n, {"queue": f"q{n}"}) for n in existing]])


def collect(numbers):
    existing[:] = numbers
    points = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    folded = [point.value for point in points if "otel.metric.overflow" in point.attributes]
    print(f"{len(existing):,} queues exist: {len(points) - len(folded)} series of their own, folded into one: {folded}")
    return len(points) - len(folded), len(folded)


assert collect(range(1500)) == (1500, 0)
assert collect(range(1500, 3000)) == (500, 1)
assert collect(range(1500, 3000)) == (500, 1)
assert collect(range(3000, 3002)) == (0, 1), "two new queues, and nothing else, should have two series"
PYTHON
"$folder/venv/bin/python" "$folder/gauge.py"
echo "As described: series that are gone count towards the limit for ever."
