"""Push consumers: what consumers with a URL have, a server sends to it.

pushing ── which there are, a pipeline for each ──▶ sender ── a POST ──▶ answers ── an ack, or when again and why
                                                      │
                               shapes  the body       │   connecting  connections, whose addresses
                               signing  the headers ──┴─▶ addresses   are judged as they are made
"""

from headrace.server.push.pushing import Pushing

__all__ = ["Pushing"]
