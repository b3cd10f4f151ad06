"""`Admin`, the class with all calls."""

from __future__ import annotations

from headrace.admin.cancelling import Cancelling
from headrace.admin.consumers import Consumers
from headrace.admin.databases import Databases
from headrace.admin.inspection import Inspection
from headrace.admin.jobs import Jobs
from headrace.admin.manual_acks import ManualAcks
from headrace.admin.messages import Messages
from headrace.admin.schedules import Schedules
from headrace.admin.sources import Sources
from headrace.admin.streams import Streams
from headrace.admin.tokens import Tokens
from headrace.admin.watching.calls import Watching


class Admin(
    Streams,
    Messages,
    Consumers,
    Cancelling,
    Inspection,
    ManualAcks,
    Jobs,
    Sources,
    Schedules,
    Tokens,
    Databases,
    Watching,
):
    """Operations on streams, consumers, sources and messages. Get it as `app.admin`.

    Args:
        database: an open one.
        judging: seconds that a call may take to evaluate a condition on messages. Some regular
            expressions never end on some texts. Then the call raises `FilterTooSlow`, and has
            changed nothing.
        counting: seconds for counting the pending messages of consumers. After that they are not
            counted, see `num_pending_exact`.

    Every method raises `UnknownStream`, `UnknownConsumer` and `UnknownSource` for names that don't
    exist, `InvalidInput` for invalid values, and `StoreUnavailable`.

    Arguments have the same meaning in all methods. `stream` and `name` are the names of a stream and
    of its consumer, or `name` alone that of a stream. `ref` is the name or the id of a source or a
    token. `spec` has the settings of what is created. `key` is a message's key, and `filter` is one
    key filter or several. `where` is a condition on the content: text, its JSON, or one made with
    `field`. `start_seq` and `start_time` are inclusive, as are `end_seq` and `end_time`, and times
    without a zone are taken as UTC. `seqs` are sequence numbers, and `ack_ids` come from `receive`.
    `data` and `headers` are JSON texts. With `dry_run` nothing is changed.
    """
