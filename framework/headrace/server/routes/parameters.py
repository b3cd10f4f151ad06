"""Parameters that many routes share."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar.params import PathParameter, QueryParameter

from headrace.admin import MAX_LIMIT

StreamRef = Annotated[str, PathParameter(description="A stream, by its id or name.")]
ConsumerRef = Annotated[str, PathParameter(description="A consumer, by its id or name.")]
AnyConsumerRef = Annotated[
    str, PathParameter(description="A consumer, by its id, by a name that only one stream has, or as `stream:name`.")
]
KeyRef = Annotated[str, PathParameter(description="A message's key; a slash in it is written %2F.")]
SeqRef = Annotated[int, PathParameter(description="A message's seq.")]

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="At most so many.")]
Sort = Annotated[Literal["seq_asc", "seq_desc"], QueryParameter(description="In which order, and so which ones.")]
Force = Annotated[bool, QueryParameter(description="Also if somebody is at it.")]
KeyPattern = Annotated[
    list[str] | None,
    QueryParameter(description="Only keys that match this filter, such as `orders.us.>`; of several, any."),
]
Where = Annotated[str | None, QueryParameter(description="Only messages that meet this condition: `data.total > 100`.")]
