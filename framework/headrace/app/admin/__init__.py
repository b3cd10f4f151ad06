"""Administration of streams, consumers and sources, from Python and from the command line."""

from headrace.app.admin.by_hand import ByHand
from headrace.app.admin.consumers import Consumers
from headrace.app.admin.given import MOST
from headrace.app.admin.overview import AtAGlance
from headrace.app.admin.sending import Sending
from headrace.app.admin.sources import Sources
from headrace.app.admin.streams import Streams
from headrace.app.admin.tokens import Tokens

__all__ = ["MOST", "Admin"]


class Admin(Streams, Sending, Consumers, ByHand, Sources, AtAGlance, Tokens):
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
