"""The lines of a history that show a violation."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.histories.consumer import Violation
from tests.histories.reading import Fields, History

MAX_LINES = 40
MAX_WIDTH = 240


def evidence(history: History, violation: Violation) -> Iterator[str]:
    """Yield the lines about the messages of a violation, in their order, each with its file and number."""
    leases: set[int] = set()
    calls: set[tuple[int, object]] = set()
    runs: set[tuple[int, object]] = set()
    shown = 0
    for line in history.lines():
        fields, call, run = line.fields, (line.file, line.fields.get("call")), (line.file, line.fields.get("run"))
        concerns = _concerns(fields, violation, leases)
        if concerns and fields["event"] in ("publish", "settle"):
            calls.add(call)
        if concerns and fields["event"] == "begin":
            runs.add(run)
        concerns = concerns or (fields["event"] == "answer" and call in calls)
        concerns = concerns or (fields["event"] == "end" and run in runs and fields["consumer"] == violation.consumer)
        if concerns:
            shown += 1
            if shown > MAX_LINES:
                yield "…"
                return
            text = json.dumps(_shortened(fields, violation))
            yield f"{history.files[line.file].name}:{line.number}: {text[:MAX_WIDTH]}{'…' if len(text) > MAX_WIDTH else ''}"


def _concerns(fields: Fields, violation: Violation, leases: set[int]) -> bool:
    event, seqs = fields["event"], violation.seqs
    if event == "publish":
        return not seqs and violation.key in fields["keys"]
    if fields.get("consumer") != violation.consumer:
        return False
    if event == "lease":
        first = 0
        for lease, end in fields["leases"]:
            if not set(seqs).isdisjoint(fields["seqs"][first:end]):
                leases.add(lease)
            first = end
        return not set(seqs).isdisjoint(fields["seqs"])
    if event == "settle":
        return not set(seqs).isdisjoint(fields["seqs"]) or not leases.isdisjoint(fields["whole"])
    return event == "begin" and not set(seqs).isdisjoint(seq for _, seq in fields["messages"])


def _shortened(fields: Fields, violation: Violation) -> Fields:
    """Leave out what a long line says of other messages."""
    lists = {
        "lease": ("seqs", "attempts", "keys", "digests"),
        "settle": ("leases", "seqs", "kinds"),
        "publish": ("keys", "digests"),
    }
    names = lists.get(fields["event"], ())
    if not names or len(fields[names[0]]) < 8:
        return fields
    if fields["event"] == "publish":
        places = [place for place, key in enumerate(fields["keys"]) if key == violation.key]
    else:
        places = [place for place, seq in enumerate(fields["seqs"]) if seq in violation.seqs]
    return fields | {name: [fields[name][place] for place in places] for name in names if fields[name]}
