"""What holds after every schedule, decided from the tables and from what calls returned.

`check` looks at one state, `check_delivery` at a lease call, and `drain` delivers all that is left and looks at the end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from tests.schedules.log import Delivery, Log, State
from tests.schedules.sessions import Session


def check(state: State, log: Log) -> Iterator[str]:
    """Return what is wrong with a state in which no transaction is open."""
    consumer, cursor = state["consumer"], state["cursor"]
    if consumer is None and log.uncertain:
        return  # it was deleted, and not made again
    if consumer is None or cursor is None:
        yield "the consumer or its cursor is gone"
        return
    yield from _places(state, log)
    yield from _leases(state)
    yield from _floors(state)
    yield from _tails(state, consumer["ordered"])
    yield from _acks(state, log)
    yield from _settings(state, log)
    yield from _cancelled(state, log)
    if state["orphans"]:
        yield f"rows of consumers that do not exist: {state['orphans']}"


def _unread(state: State) -> set[int]:
    """The messages that lie above the cursor, or in its holes, and are not cancelled."""
    position, holes = state["cursor"]["position"], _ranges(state["cursor"]["all_holes"])
    return {
        seq for seq, *_ in state["messages"] if seq > position or any(lower <= seq < upper for lower, upper in holes)
    } - _requested(state)


def _requested(state: State) -> set[int]:
    """The messages whose cancellation is pending."""
    return {seq for seq, is_pending, _ in state["cancelled"] if is_pending}


def _cancelled(state: State, log: Log) -> Iterator[str]:
    """A cancelled message waits nowhere, and the cursor says that a cancellation is pending."""
    requested = _requested(state)
    if requested and not state["cursor"]["cancelling"]:
        yield f"the cancellations of {sorted(requested)} are pending, and lease calls do not look"
    ended = {seq for seq, _, outcome in state["cancelled"] if outcome == "cancelled"}
    waiting = {row[0] for table in ("parked", "tails") for row in state[table]} | set(state["replays"])
    if not log.rewound and (left := (requested | ended) & waiting | ended & set(pending(state))):
        yield f"cancelled messages wait to be delivered: {sorted(left)}"


def _ranges(text: str) -> list[tuple[int, int]]:
    return [(int(lower or 0), int(upper or 1 << 62)) for lower, upper in re.findall(r"[\[(](\d*),(\d*)\)", text)]


def _acked(log: Log) -> set[int]:
    return {seq for _, seq in log.acks()}


def pending(state: State) -> Counter[int]:
    """Return how often each message waits for its delivery, or is in flight."""
    committed = {(lease, seq) for lease, seq in state["acks"]}
    places = Counter(seq for lease in state["leases"] for seq in lease["seqs"] if (lease["id"], seq) not in committed)
    for table in ("parked", "tails"):
        places.update(row[0] for row in state[table])
    places.update(state["replays"])
    places.update(_unread(state))
    places.update(seq for seq, _, blocks, _ in state["dead"] if blocks)
    return places


def _places(state: State, log: Log) -> Iterator[str]:
    """Each committed message is unread, in flight, waiting, dead or done, and in one of these places only."""
    places = pending(state)
    done = _acked(log) | set(state["effects"]) | log.settled | set(state["erased"])
    done |= {seq for seq, is_pending, outcome in state["cancelled"] if is_pending or outcome == "cancelled"}
    done |= set(range(log.forward + 1))
    dead = {row[0] for row in state["dead"]}
    for seq, key, _ in state["messages"]:
        if seq not in places and seq not in dead and seq not in done:
            yield f"message {seq} of key {key} is lost: it is neither unread nor in flight, parked, dead or done"
        if not log.rewound:
            if places[seq] > 1:
                yield f"message {seq} of key {key} is in {places[seq]} places"
            if places[seq] and seq in _acked(log):
                yield f"message {seq} of key {key} was acked, and waits to be delivered again"
    if removed := log.kept - {seq for seq, *_ in state["messages"]} - set(state["erased"]):
        yield f"messages were removed after an edit that keeps them: {sorted(removed)}"
    there, before = ({seq for seq, *_ in one["messages"]} for one in (state, log.initial))
    # A dead letter may be erased whose message retention had removed at the beginning.
    gone = set(state["erased"]) - ({row[0] for row in log.initial["dead"]} - before)
    present = len(there | gone) + len(state["scheduled"])
    if not state["compacted"] and not log.removes and present < log.expected:
        yield f"{log.expected} messages were published, and {present} are there"


def _leases(state: State) -> Iterator[str]:
    """No key is in the leases of two owners, and counts agree."""
    owners: dict[int, str] = {}
    keys: set[int] = set()
    for lease in state["leases"]:
        if lease["held"] != len(lease["seqs"]) or len(lease["seqs"]) != len(lease["hashes"]):
            yield f"lease {lease['id']} holds {lease['seqs']}, and says {lease['held']}"
        for seq, key in zip(lease["seqs"], lease["hashes"], strict=False):
            if seq < lease["lowest"] and seq > 0:
                yield f"lease {lease['id']} holds {seq}, below its lowest {lease['lowest']}"
            if state["compacted"] and state["consumer"]["ordered"] and key in keys:
                yield f"two messages of the key of message {seq} are in flight, in a stream with one message per key"
            keys.add(key)
            if state["consumer"]["ordered"] and owners.setdefault(key, lease["owner"]) != lease["owner"]:
                yield f"the key of message {seq} is in the leases of two owners"


def _floors(state: State) -> Iterator[str]:
    """No row lies below the floor from which its table is read."""
    cursor = state["cursor"]
    for lease in state["leases"]:
        if lease["id"] < cursor["lease_floor"]:
            yield f"lease {lease['id']} lies below the floor {cursor['lease_floor']}"
    for seq, _, _, _, due in state["parked"]:
        if seq < cursor["parked_floor"]:
            yield f"parked message {seq} lies below the floor {cursor['parked_floor']}"
        if due is None and seq < cursor["ready_floor"]:
            yield f"parked message {seq} is due at once, below the floor {cursor['ready_floor']}"
        if due is not None and due < cursor["due"] - 1:
            yield f"parked message {seq} is due at {due}, below the floor {cursor['due']}"
    for seq, _, blocks, _ in state["dead"]:
        if blocks and seq < cursor["blocked_floor"]:
            yield f"message {seq} blocks its key below the floor {cursor['blocked_floor']}"
    for seq in state["replays"]:
        if cursor["replay_floor"] is None or seq < cursor["replay_floor"]:
            yield f"message {seq} is to be replayed, below the floor {cursor['replay_floor']}"


def _tails(state: State, ordered: bool) -> Iterator[str]:
    """Each tail has a first message, which is parked or blocks the key."""
    replayed = {key for seq, _, key in state["messages"] if seq in state["replays"]}
    heads = replayed | {key for _, key, *_ in state["parked"]} | {key for _, key, blocks, _ in state["dead"] if blocks}
    for seq, key in state["tails"]:
        if not ordered or key not in heads:
            yield f"message {seq} waits behind a message of its key, and there is none"


def _acks(state: State, log: Log) -> Iterator[str]:
    leases = {lease["id"] for lease in state["leases"]}
    for lease, seq in state["acks"]:
        if lease not in leases:
            yield f"the ack of {seq} names lease {lease}, which has ended"
    if not log.rewound:
        for seq, times in Counter(seq for _, seq in log.acks()).items():
            if times > 1:
                yield f"message {seq} was acked in {times} leases"
        for lease, seq in set(log.acked) & log.put_back:
            yield f"message {seq} was acked and put back, both in lease {lease}"
        for seq, times in Counter(state["effects"]).items():
            if times > 1:
                yield f"the effect of message {seq} was committed {times} times"
    same = state["consumer"]["id"] == log.initial["consumer"]["id"]
    if state["completed"] is not None and same and not log.uncertain:
        recorded, acked = Counter(state["completed"]), Counter(seq for _, seq in log.acks())
        if recorded != acked:
            yield f"the history has the acks of {sorted(recorded.elements())}, and {sorted(acked.elements())} were acked"
    missing = set(state["effects"]) - _acked(log)
    if missing and not log.uncertain:
        yield f"effects were committed without their acks: {sorted(missing)}"
    keys = [name for name, _ in state["unique"]]
    if len(keys) > len(set(keys)):
        yield f"unique keys have several rows: {state['unique']}"
    unique = {seq for seq, key, _ in state["messages"] if key == "u"} & set(pending(state))
    if len(unique) > 1 and not log.rewound:
        yield f"messages with one unique key are pending together: {sorted(unique)}"
    if [key for _, key, _ in state["messages"]].count("i") > 1:
        yield "a message id was published twice"


def _settings(state: State, log: Log) -> Iterator[str]:
    if state["consumer"]["on_exhausted"] != "block" and any(blocks for _, _, blocks, _ in state["dead"]):
        yield "a dead letter blocks its key, in a consumer that blocks none"
    left = {row[0] for table in ("parked", "tails", "dead") for row in state[table]} | set(state["replays"])
    if log.erased & set(state["erased"]) & left:
        yield f"something is left of erased messages: {sorted(log.erased & left)}"


def check_delivery(delivery: Delivery, log: Log) -> Iterator[str]:
    """No message is delivered before an earlier one of its key that was committed when the call began."""
    before, after = delivery.before, delivery.after
    if not all(state["consumer"] and state["consumer"]["ordered"] for state in (before, after)):
        return
    yield from _leases(after)
    keys = {seq: key for seq, _, key in after["messages"] + before["messages"]}
    keys |= {seq: key for lease in after["leases"] for seq, key in zip(lease["seqs"], lease["hashes"], strict=False)}
    committed = {seq for seq, *_ in before["messages"]}
    waiting = set(pending(after)) - set(delivery.seqs)
    mine = {
        seq
        for state in (before, after)
        for lease in state["leases"]
        if lease["owner"] == delivery.owner
        for seq in lease["seqs"]
    }
    if before["consumer"]["paused"] and after["consumer"]["paused"]:
        yield f"messages {delivery.seqs} were delivered although the consumer is paused"
    returned = {seq for _, seq in log.put_back}
    # What this owner was given while the call waited, and has put back since, it had in its own hands.
    given = {one.lease for one in log.deliveries if one.owner == delivery.owner}
    waited = {row[0] for table in ("parked", "tails", "dead") for row in before[table]}
    mine |= {seq for lease, seq in log.put_back if lease in given and seq not in waited}
    for place, seq in enumerate(delivery.seqs):
        if any(keys.get(other) == keys.get(seq) and other > seq for other in delivery.seqs[:place]):
            yield f"message {seq} was delivered behind a later one of its key"
        later = {
            other
            for lease in before["leases"]
            if lease["id"] in {one["id"] for one in after["leases"]}
            for other in lease["seqs"]
            if other > seq and keys.get(other) == keys.get(seq)
        }
        if (
            later
            and seq <= log.stored - log.filled
            and seq not in returned
            and not log.rewound
            and not after["compacted"]
        ):
            yield f"message {seq} was delivered while {sorted(later)} of its key are in flight"
        earlier = {other for other in waiting & committed - mine if other < seq and keys.get(other) == keys.get(seq)}
        if earlier and not log.rewound and not after["compacted"]:
            yield f"message {seq} was delivered before {sorted(earlier)} of its key"
        if seq in {one for one, _, outcome in before["cancelled"] if outcome != "finished"} and not log.rewound:
            yield f"message {seq} was delivered after it was cancelled"
        if seq in delivery.acked and not log.rewound:
            yield f"message {seq} was delivered after it was acked"


def drain(controller: Session, state: State, log: Log) -> Iterator[str]:
    """Deliver all that is left, in a year, and return what does not come, or in the wrong order."""
    wanted = set(pending(state)) & {seq for seq, *_ in state["messages"]} - set(state["erased"]) - _requested(state)
    keys = {seq: key for seq, key, _ in state["messages"]}
    delivered: set[int] = set()
    for batches in json.loads(controller.value(f"call gate.drain({state['consumer']['id']}, null)")):
        last: dict[str, int] = {}
        for batch in batches:
            if batch is None:
                yield "lease calls say that there is more, and there is no end"
                break
            for seq in batch:
                key = keys.get(seq, "")
                if state["consumer"]["ordered"] and seq <= last.get(key, 0) and not log.rewound:
                    yield f"message {seq} was delivered after {last[key]} of its key"
                last[key] = max(seq, last.get(key, 0))
            delivered |= set(batch)
    if missing := wanted - delivered:
        yield f"messages are never delivered: {sorted(missing)}"
    # Dead letters are redriven, and those that were at work are repeated after a replay, whatever was cancelled before. So
    # are those that a transaction acked, and whose lease goes on.
    repeated = {row[0] for table in ("dead", "tails") for row in state[table]}
    if log.rewound:
        repeated |= {seq for _, seq in state["acks"]}
    if again := delivered & _requested(state) - repeated:
        yield f"messages were delivered after they were cancelled: {sorted(again)}"
    if not log.rewound and (again := delivered & _acked(log)):
        yield f"messages were delivered after they were acked: {sorted(again)}"
