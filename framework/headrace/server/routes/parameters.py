"""Parameters that many routes share."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar.params import Parameter, PathParameter, QueryParameter

from headrace.admin import MAX_LIMIT

StreamRef = Annotated[str, PathParameter(description="Id or name of a stream.")]
ConsumerRef = Annotated[str, PathParameter(description="Id or name of a consumer.")]
AnyConsumerRef = Annotated[
    str, PathParameter(description="Id of a consumer, its name if only one stream has it, or `stream:name`.")
]
KeyRef = Annotated[str, PathParameter(description="Key of a message. Write a slash in it as %2F.")]
SourceRef = Annotated[str, Parameter(description="Id or name of a source.")]
SeqRef = Annotated[int, PathParameter(description="Seq of a message.")]

Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="Maximum number of results.")]
Sort = Annotated[
    Literal["seq_asc", "seq_desc"],
    QueryParameter(description="Order of the results. It also selects which ones are returned."),
]
Force = Annotated[
    bool | None,
    QueryParameter(description="`false` refuses with 409 while a worker uses it. By default it is deleted."),
]
KeyPattern = Annotated[
    list[str] | None,
    QueryParameter(description="Return only keys that match one of these filters, such as `orders.us.>`."),
]
Where = Annotated[
    str | None, QueryParameter(description="Return only messages that meet this condition, such as `data.total > 100`.")
]
