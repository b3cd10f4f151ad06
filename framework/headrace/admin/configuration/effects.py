"""The effects of changed settings, and when they begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.model.settings import amount


class Effect(NamedTuple):
    """A sentence, and whether messages or access are lost."""

    text: str
    destructive: bool = False


_BY_KIND = {
    "stream": Effect("It applies to the next message and the next cleanup."),
    "consumer": Effect("Workers use it from their next lease on."),
    "source": Effect("Servers and the capturing process use it within two seconds."),
    "token": Effect("Servers use it within two seconds."),
    "grant": Effect("It applies to the next call of the role."),
}

_FILTER = Effect(
    "It applies to messages that the consumer has not reached. Earlier ones that match now are not delivered: use"
    " `headrace consumer replay`."
)
_PUSH = Effect("Servers use it within two seconds.")


def _lowered(before: float | None, after: float | None) -> bool:
    """Whether a limit is lower than before. None is no limit."""
    return after is not None and (before is None or after < before)


def _retain_up_to(before: float | None, after: float | None) -> Effect:
    if _lowered(before, after):
        return Effect(
            f"Messages older than {amount(after or 0, 'seconds')} will be removed, also if a consumer has not read them.",
            True,
        )
    return Effect("Messages are kept longer. Those that were removed don't come back.")


def _max_storage(before: int | None, after: int | None) -> Effect:
    if _lowered(before, after):
        return Effect(
            f"The oldest messages above {amount(after or 0, 'bytes')} will be removed, also if a consumer has not read them.",
            True,
        )
    return Effect("More messages are kept. Those that were removed don't come back.")


def _retain_at_least(before: float | None, after: float | None) -> Effect:
    if (after or 0) < (before or 0):
        return Effect("Younger messages than before may be removed by the other limits.", True)
    return Effect("Publishing is refused while the stream is full of messages that are younger.")


def _retention(_: str, after: str) -> Effect:
    if after == "interest":
        return Effect("Messages that every consumer is done with will be removed.", True)
    return Effect("The limits alone say what is removed. Without any limit, all messages are kept.")


def _on_exhausted(_: str, after: str) -> Effect:
    if after == "drop":
        return Effect("Messages whose attempts are exhausted will be discarded. Existing dead letters stay.", True)
    return Effect("It applies to messages that are exhausted from now on.")


def _max_deliver(before: int, after: int) -> Effect:
    if before == -1 or (after < before and after != -1):
        return Effect("Messages that have had as many attempts already are exhausted at their next failure.")
    return Effect("Messages that are waiting for an attempt get more of them.")


def _push(before: Any, after: Any) -> Effect:
    if before is None:
        return Effect("Servers send the messages from now on. Workers that lease them share the work.")
    return (
        _PUSH
        if after is not None
        else Effect("Servers stop sending within two seconds. Workers must lease the messages.")
    )


def _tables(before: list[str], after: list[str]) -> Effect:
    gone = [table for table in before if table not in after]
    text = "New tables are captured within two seconds, and backfilled if `backfill` is set."
    return Effect(f"{text} Changes of {', '.join(gone)} are no longer captured." if gone else text, bool(gone))


def _history(_: float | None, after: float | None) -> Effect:
    if after is None:
        return Effect("No more is remembered of messages that are done, and what was remembered is removed.")
    return Effect("It applies to messages that are done from now on. Older entries than this are removed.")


_BY_FIELD: Mapping[tuple[str, str], Callable[[Any, Any], Effect]] = {
    ("stream", "retain_up_to"): _retain_up_to,
    ("stream", "max_storage"): _max_storage,
    ("stream", "retain_at_least"): _retain_at_least,
    ("stream", "retention"): _retention,
    ("stream", "index_keys"): lambda _, after: Effect(
        "Segments get their indexes of keys one after another, and publishing takes longer from now on."
        if after
        else "The indexes of keys are dropped. Messages of a key are found by a search."
    ),
    ("stream", "dedupe_window"): lambda *_: Effect("It applies to ids that were published before, too."),
    ("consumer", "filter"): lambda *_: _FILTER,
    ("consumer", "where"): lambda *_: _FILTER,
    ("consumer", "ordered"): lambda _, after: Effect(
        "The order of a key is kept from the next lease on."
        if after
        else "Messages of a key may be handled at the same time."
    ),
    ("consumer", "ack_wait"): lambda *_: Effect("It applies to leases from now on. Existing ones keep their time."),
    ("consumer", "max_deliver"): _max_deliver,
    ("consumer", "on_exhausted"): _on_exhausted,
    ("consumer", "push"): _push,
    ("consumer", "history"): _history,
    ("source", "tables"): _tables,
    ("source", "secrets"): lambda *_: Effect(
        "Within two seconds deliveries that are signed with other secrets are refused."
    ),
    ("source", "signature"): lambda *_: Effect("Within two seconds deliveries that are signed otherwise are refused."),
}


def effect_of(kind: str, name: str, before: Any, after: Any) -> Effect:
    """The effect of a changed setting."""
    if name.startswith("push."):
        return _PUSH
    found = _BY_FIELD.get((kind, name))
    return _BY_KIND[kind] if found is None else found(before, after)
