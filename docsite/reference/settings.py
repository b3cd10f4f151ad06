"""All settings on one page, from their descriptions in the code."""

from __future__ import annotations

from docsite.reference.markdown import from_folder
from docsite.tables import process_settings_table, settings_table
from headrace.cli.options.server import ServerBehavior, ServerLimits
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

_SPECS = (
    ("Streams", StreamSpec, "`app.stream(…)`, `headrace stream add`, `POST /v1/streams`. See [streams](streams.md)."),
    ("Consumers", ConsumerSpec, "`@app.consumer(…)`, `headrace consumer add`. See [streams](streams.md)."),
    ("Push consumers", Push, "What a consumer has in addition if a server sends its messages. See [push](push.md)."),
    ("Webhooks", WebhookSpec, "`headrace source webhook add`. See [webhooks](webhooks.md)."),
    ("Captured tables", PostgresSpec, "`app.capture(…)`, `headrace source postgres add`. See [capture](capture.md)."),
)


def page() -> str:
    """Return the page."""
    parts = [
        "# All settings\n",
        "A duration is a number of seconds, or a text such as `500ms`, `30s`, `5m`, `1h`.\n",
        "## Processes\n",
        "Which place takes precedence is said in [settings](settings.md).\n",
        process_settings_table(),
        "## Servers\n",
        "Options of `headrace serve`. See [the server](server.md#limits).\n",
        ServerBehavior.table(),
        ServerLimits.table(),
    ]
    for title, spec, about in _SPECS:
        parts += [f"## {title}\n", f"{about}\n", settings_table(spec)]
    return from_folder("\n".join(parts))
