"""Parameters that many routes share."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from litestar import Request
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import Parameter as AnyParameter
from litestar.params import PathParameter, QueryParameter
from msgspec import Struct
from msgspec.structs import fields

from headrace.admin import MAX_LIMIT
from headrace.model.conditions.selections import MAX_CHOSEN, Criterion, described
from headrace.model.conditions.tree import MAX_JSON_BYTES
from headrace.model.keys import MAX_FILTERS, MAX_KEY_BYTES
from headrace.server.query_parameters import check_parameters

# These limits are checked where filters and conditions are read, with better errors.
_FILTERS = {
    "max_items": MAX_FILTERS,
    "items": Schema(type=OpenAPIType.STRING, min_length=1, max_length=MAX_KEY_BYTES),
}

StreamRef = Annotated[str, PathParameter(description="Id or name of a stream.")]
ConsumerRef = Annotated[str, PathParameter(description="Id or name of a consumer.")]
AnyConsumerRef = Annotated[
    str, PathParameter(description="Id of a consumer, its name if only one stream has it, or `stream:name`.")
]
KeyRef = Annotated[
    str,
    PathParameter(
        description="Key of a message. Write a slash in it as %2F.", schema_extra={"max_length": MAX_KEY_BYTES}
    ),
]
SourceRef = Annotated[str, AnyParameter(description="Id or name of a source.")]
DatabaseRef = Annotated[str, PathParameter(description="Name of a further database.")]
TokenRef = Annotated[str, PathParameter(description="Id or name of a token.")]
ScheduleRef = Annotated[
    str,
    PathParameter(
        description="Name of a schedule, or `stream:name` if schedules of several databases have the name.",
        schema_extra={"max_length": 97},
    ),
]
SeqRef = Annotated[
    int, PathParameter(description="Seq of a message.", schema_extra={"minimum": 1, "maximum": 2**63 - 1})
]


def parameters_of(request: Request[Any, Any, Any]) -> list[str]:
    """Return the names of the query parameters that a request's route takes."""
    found = request.route_handler.parsed_fn_signature.parameters.items()
    return [
        field.kwarg_definition.name or name
        for name, field in found
        if isinstance(field.kwarg_definition, QueryParameter)
    ]


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Raise a `Problem` if a request has a query parameter that its route doesn't take."""
    if request.query_params:
        check_parameters(request.query_params, parameters_of(request))


Limit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="Maximum number of results.")]
Sort = Annotated[
    Literal["seq_asc", "seq_desc"],
    QueryParameter(description="Order of the results. It also selects which ones are returned."),
]
Force = Annotated[
    bool | None,
    QueryParameter(description="`false` refuses with 409 while a worker uses it. By default it is deleted."),
]
Filter = Annotated[
    list[str] | None,
    QueryParameter(
        description="Return only keys that match one of these filters, such as `orders.us.>`.", schema_extra=_FILTERS
    ),
]
ExactKey = Annotated[
    str | None,
    QueryParameter(
        description="Return only messages of exactly this key, which are its history. Not together with `filter`.",
        schema_extra={"min_length": 1, "max_length": MAX_KEY_BYTES},
    ),
]
KeyPattern = Annotated[
    list[str] | None, QueryParameter(description="An older name of `filter`.", schema_extra=_FILTERS)
]
Seqs = Annotated[
    list[int] | None,
    QueryParameter(
        description="Return only those with these seqs.",
        max_items=MAX_CHOSEN,
        schema_extra={"items": Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=2**63 - 1)},
    ),
]
Where = Annotated[
    str | None,
    QueryParameter(
        description="Return only messages that meet this condition, such as `data.total > 100`.",
        schema_extra={"max_length": MAX_JSON_BYTES},
    ),
]


Handler = TypeVar("Handler", bound=Callable[..., Any])


def with_query(handler: Handler) -> Handler:
    """Give a handler the query parameters that are the fields of its parameters that are a `Struct`, in their places."""
    hints = get_type_hints(handler, include_extras=True)
    kinds = {name: hint for name, hint in hints.items() if name != "return" and isinstance(hint, type)}
    queries = {name: kind for name, kind in kinds.items() if issubclass(kind, Struct)}
    made: list[Parameter] = []
    for one in signature(handler).parameters.values():
        if one.name in queries:
            hints |= get_type_hints(query := queries[one.name], include_extras=True)
            made += (Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default) for field in fields(query))
        else:
            made.append(one.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(handler)
    async def decorated(**arguments: Any) -> Any:
        given = {
            name: query(**{field: arguments.pop(field) for field in query.__struct_fields__})
            for name, query in queries.items()
        }
        return await handler(**arguments, **given)

    return _described(decorated, made, {name: hint for name, hint in hints.items() if name not in queries})  # type: ignore[no-any-return]


def with_criteria(criteria: type) -> Callable[[Handler], Handler]:
    """Give a handler with `**criteria` a query parameter for each of them, see `headrace.model.conditions.selections`."""
    added = {one.name: _parameter(one) for one in described(criteria)}

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        async def decorated(**arguments: Any) -> Any:
            return await handler(**arguments)

        hints = get_type_hints(handler, include_extras=True)
        own = [one for one in signature(handler).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in added]
        known = {name: hint for name, hint in hints.items() if name != "criteria"}
        return with_query(_described(decorated, [*own, *more], {**known, **added}))  # type: ignore[no-any-return]

    return decorate


def _described(handler: Any, parameters: list[Parameter], hints: dict[str, Any]) -> Any:
    """Have a handler described by these parameters and their types."""
    handler.__signature__, handler.__annotations__ = Signature(parameters), hints
    return handler


def _parameter(one: Criterion) -> Any:
    if one.name == "filter":
        return Filter
    if one.name == "where":
        return Where
    if one.name == "seqs":
        return Seqs
    limits = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value for name, value in one.limits.items()}
    return Annotated[
        one.type | None, QueryParameter(description=one.description, schema_extra=limits or None, **one.checks)
    ]
