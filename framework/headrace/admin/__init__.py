"""Administration of streams, consumers and sources, from Python and from the command line."""

from headrace.admin.consumers import Consumers
from headrace.admin.manual_acks import ManualAcks
from headrace.admin.overview import OverviewCalls
from headrace.admin.publish import PublishCalls
from headrace.admin.sources import Sources
from headrace.admin.streams import Streams
from headrace.admin.tokens import Tokens
from headrace.admin.validation import MOST

__all__ = ["MOST", "Admin"]


class Admin(Streams, PublishCalls, Consumers, ManualAcks, Sources, OverviewCalls, Tokens):
    """Operations on streams, consumers, sources and messages. Get it as `app.admin`.

    Args:
        database: an open one.
        judging: seconds that a call may take to evaluate a condition on messages. A regular
            expression may take forever on some texts. Then the call raises `FilterTooSlow`, and has
            changed nothing.

    Every method raises `UnknownStream` and `UnknownConsumer` for names that don't exist,
    `InvalidInput` for invalid values, and `StoreUnavailable`. `filter` is one key filter or
    several. `where` is a condition on the content: text, its JSON, or one made with `field`. Times
    without a zone are taken as UTC.
    """
