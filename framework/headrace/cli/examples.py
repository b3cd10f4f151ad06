"""Examples at the end of the help texts of commands."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

EXAMPLES = {
    "asyncapi": """\
headrace asyncapi service:app
headrace asyncapi service:app --title Shop --api-version 2.1.0""",
    "consumer history": """\
headrace consumer history orders ship
headrace consumer history orders ship --key orders.us.42""",
    "audit": """\
headrace audit --stream orders --since 1d
headrace audit --action consumer.seek --json""",
    "plan": """\
headrace plan headrace.yaml
headrace plan config/ --prune --detailed-exitcode""",
    "apply": """\
headrace apply headrace.yaml
headrace apply config/ --prune --yes --tokens-out tokens.env""",
    "export": "headrace export --name shop --secrets-out shop.env",
    "context add": """\
headrace context add prod --server https://headrace.example --token-file -
headrace context add local --database postgresql://localhost/shop""",
    "context use": """\
headrace context use staging
headrace context use --none""",
    "context rm": "headrace context rm staging",
    "grant publish": """\
headrace grant publish shop --stream orders
headrace grant publish shop --stream orders --sql""",
    "grant consume": "headrace grant consume shipping --stream orders --stream returns",
    "grant admin": "headrace grant admin ops",
    "migrate": """\
headrace migrate
headrace migrate --owner headrace --database postgresql://postgres@db/shop""",
    "revoke": "headrace revoke publish shop --stream orders",
    "observe": """\
headrace observe
headrace observe --server http://localhost:7376 --interval 5s""",
    "serve": """\
headrace serve
headrace serve --database postgresql://shop@db/shop --processes 4
headrace serve --host 0.0.0.0 --tls-cert fullchain.pem --tls-key privkey.pem""",
    "schedule info": "headrace schedule info reports",
    "schedule run": "headrace schedule run reports --server http://localhost:7376",
    "source info": "headrace source info stripe",
    "source backfill start": """\
headrace source backfill start orders
headrace source backfill start orders --where 'data.record.total > 100'""",
    "source backfill cancel": "headrace source backfill cancel orders",
    "source postgres add": """\
headrace source postgres add --table public.orders
headrace source postgres add shop --table public.orders --table public.items \\
  --mode rows --deletes tombstone --from-file shop.url""",
    "source postgres edit": """\
headrace source postgres edit orders --columns public.orders=id,status
headrace source postgres edit orders --rate 5000 --alarm 5GB""",
    "source postgres verify": """\
headrace source postgres verify orders
headrace source postgres verify orders --repair --rate 5000""",
    "source rm": "headrace source rm stripe",
    "source webhook add": """\
headrace source webhook add sent --stream forms --key 'forms.{body.kind}'
headrace source webhook add stripe --stream payments --signature stripe \\
  --secret-file stripe.secret""",
    "source webhook edit": """\
headrace source webhook edit stripe --max-body 1MB
headrace source webhook edit stripe --secret-file both""",
    "database add": """\
headrace database add eu --url-from env:EU_DATABASE
headrace database add us --url-from file:/run/secrets/us-database --no-check""",
    "spark check": """\
headrace spark check
headrace spark check --master spark://cluster:7077 --json
headrace spark check --database postgresql://db.example.com/shop""",
    "stream search": """\
headrace stream search orders --where 'data.total > 100' --since 1d
headrace stream search orders --filter orders.us.42 --limit 5""",
    "stream journey": "headrace stream journey orders 4711",
    "job cancel": "headrace job cancel 6a7d0c56-3b8f-4a54-9f0e-1d9d2c7e5a10",
    "stream erase": 'headrace stream erase orders 17 18 --reason "request 2031-17"',
    "token add": """\
headrace token add ops --scope admin
headrace token add shop --scope publish:orders --expires 30d""",
    "token open": "headrace token open --database postgresql://localhost/shop",
}
"""Examples by command. They fit a terminal of 80 columns. A test parses them like the command line."""


def example(command: str, examples: Mapping[str, str] = EXAMPLES) -> str:
    """Return the examples to show below the help of a command. Empty if there are none."""
    found = examples.get(command)
    return "" if found is None else "For example:\n" + indent(found, "  ")
