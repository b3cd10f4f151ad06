"""Administration of streams, consumers and sources, from Python, the command line and the HTTP API.

`Admin` is made of one class for each subject: `streams`, `messages`, `consumers`, `manual_acks`, `sources`
with `captures`, and `tokens`. `validation` checks arguments before any query, and `source_settings` the
settings of sources. `operations` describes the requests of the HTTP API, from which its routes and the calls of
`headrace.client` follow.
"""

from typing import TYPE_CHECKING, Any

from headrace.model.pages import MAX_LIMIT

if TYPE_CHECKING:
    from headrace.admin.admin import Admin

__all__ = ["MAX_LIMIT", "Admin"]


def __getattr__(name: str) -> Any:
    if name != "Admin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.admin.admin import Admin  # imported late: clients of a server need `operations`, but no driver

    return Admin
