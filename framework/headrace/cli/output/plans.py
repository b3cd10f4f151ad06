"""Prints plans of configurations: what is created (+), changed (~) and deleted (-)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from headrace.model.text.counting import count
from headrace.model.text.printing import printable, printable_lines

if TYPE_CHECKING:
    from headrace.admin.configuration import Change, Plan

_SIGNS = {"create": "+", "change": "~", "delete": "-"}
_DONE = {"create": "created", "change": "changed", "delete": "deleted"}


def print_plan(plan: Plan, file: TextIO | None = None) -> None:
    """Print each change with its settings, and a summary."""
    lines = [line for change in plan.changes for line in _lines(change)]
    lines += [
        f"  {name_of(one.kind, one.object)}{_in(one.database)} is no longer mentioned, and stays. --prune deletes it."
        for one in plan.left
    ]
    lines += [
        f"  Nothing is compared or deleted in the database {name!r}. {reason}" for name, reason in plan.away.items()
    ]
    print("\n".join(printable_lines(line) for line in [*lines, summary(plan)]), file=file or sys.stdout)


def summary(plan: Plan, *, done: bool = False) -> str:
    """Say how many objects of each kind a plan creates, changes and deletes."""
    if not plan.changes:
        return "Nothing to do."
    counts = [(sum(change.action == action for change in plan.changes), action) for action in _SIGNS]
    texts = [
        f"{count(number, 'object')} {_DONE[action] if done else f'to {action}'}" for number, action in counts if number
    ]
    return f"{'Done' if done else 'Plan'}: {', '.join(texts)}."


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON prints it."""
    return {
        "changes": msgspec.to_builtins(plan.changes),
        "left": [[one.kind, *one.object] for one in plan.left],
        "away": plan.away,
    }


def name_of(kind: str, names: tuple[str, ...]) -> str:
    """An object in words, such as `consumer orders/us`."""
    if kind == "grant":
        role, privilege, stream = names
        return f"grant of {privilege} on {stream or 'all streams'} to {role}"
    return f"{kind} {'/'.join(names)}"


def _in(database: str | None) -> str:
    return "" if database is None else f" in {database}"


def _lines(change: Change) -> list[str]:
    mark = " (destructive)" if change.destructive else ""
    lines = [f"{_SIGNS[change.action]} {name_of(change.kind, change.object)}{_in(change.database)}{mark}"]
    for field in change.fields:
        before = "" if change.action == "create" else f"{_value(field.before)} -> "
        lines.append(f"    {field.name}: {before}{_value(field.after)}")
        lines += [f"      {field.effect}"] if field.effect else []
    return lines + [f"    {text}" for text in (change.effect, change.guarded) if text]


def _value(value: Any) -> str:
    return printable(msgspec.json.encode(value).decode())
