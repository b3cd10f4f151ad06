"""Push consumers. A server sends the messages of a consumer with a URL to that URL by HTTP POST.

push_consumers ── a pipeline each ──▶ handler ── a POST ──▶ responses ── an ack, or a nack with its reason
                                         │
             request_bodies  the body    │   http_client      connections to addresses
             signing  the headers        │   addresses        that are checked when they are made
             target   the rest ──────────┴─▶ http_connection  a request and its response
"""

from headrace.server.push.push_consumers import PushConsumers

__all__ = ["PushConsumers"]
