"""Administration of streams, consumers and sources, from Python, the command line and the HTTP API.

`Admin` is made of one class for each subject: `streams`, `messages`, `consumers`, `manual_acks`, `sources`
with `captures`, and `tokens`. `validation` checks arguments before any query, and `source_settings` the
settings of sources. `headrace.client` has the same calls over HTTP.
"""

from headrace.admin.admin import Admin
from headrace.model.pages import MAX_LIMIT

__all__ = ["MAX_LIMIT", "Admin"]
