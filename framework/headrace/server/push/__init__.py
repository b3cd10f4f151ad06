"""Push consumers. A server sends the messages of a consumer with a URL to that URL by HTTP POST.

pushing ── a pipeline each ──▶ sender ── a POST ──▶ answers ── an ack, or a nack with its reason
                                 │
          shapes  the body       │   connecting  connections to addresses
          signing  the headers ──┴─▶ addresses   that are checked when they are made
"""

from headrace.server.push.pushing import Pushing

__all__ = ["Pushing"]
