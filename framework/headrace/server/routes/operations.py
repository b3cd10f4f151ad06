"""The routes of `headrace.admin.requests.operations`, made of its rows."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from inspect import Parameter, Signature, cleandoc
from typing import Annotated, Any, Final, NamedTuple, Optional, get_args, get_origin

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct, defstruct, structs

from headrace.admin import Admin
from headrace.admin.requests.operation import (
    CONSUMER,
    DATABASE,
    SCHEDULE,
    SOURCE,
    STREAM,
    TOKEN,
    Count,
    Operation,
)
from headrace.admin.requests.operations import OPERATIONS
from headrace.model.capture import Backfill, BackfillInfo
from headrace.model.records import ConsumerInfo
from headrace.model.sources import SourceInfo
from headrace.server.access.scopes import Need
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.parameters import ConsumerRef, DatabaseRef, ScheduleRef, SourceRef, StreamRef, TokenRef
from headrace.server.slashes import unmarked
from headrace.server.wire.captures import PostgresSource
from headrace.server.wire.common import Listed, Success
from headrace.server.wire.consumer_answers import Consumer

SHOWN: dict[type, type[Any]] = {ConsumerInfo: Consumer, SourceInfo: PostgresSource, BackfillInfo: Backfill}
"""The form in answers of records that have another one there. It has a method `of`."""


class Subject(Struct, frozen=True):
    """A kind of object.

    Attributes:
        path: the path of an object, as Litestar has it.
        refs: the parameters in the path, with their types.
        tag: the section of the description.
        find: checks the caller's access, and returns the first arguments of the method.
        changed: called after a change, with what the method has returned.
    """

    path: str
    refs: dict[str, Any]
    tag: str
    find: Callable[..., Awaitable[tuple[str, ...]]]
    changed: Callable[[RouteContext, Any], None] = lambda context, result: None


async def _consumer(
    context: RouteContext, request: AnyRequest, need: Need, stream: str, consumer: str
) -> tuple[str, ...]:
    cached = await context.consumer(stream, consumer, need)
    return cached.stream.name, cached.name


async def _stream(context: RouteContext, request: AnyRequest, need: Need, stream: str) -> tuple[str, ...]:
    return ((await context.stream(stream, need)).name,)


async def _source(context: RouteContext, request: AnyRequest, need: Need, source: str) -> tuple[str, ...]:
    return ((await context.source(source)).id,)


async def _schedule(context: RouteContext, request: AnyRequest, need: Need, schedule: str) -> tuple[str, ...]:
    return ((await context.schedule(schedule, need)).name,)


async def _of_all_streams(context: RouteContext, request: AnyRequest, need: Need, **ref: str) -> tuple[str, ...]:
    await context.check_all_streams(need)
    return tuple(map(unmarked, ref.values()))


def _token_changed(context: RouteContext, token: Any) -> None:
    context.access.changed(token.id)


def _source_changed(context: RouteContext, source: Any) -> None:
    if isinstance(source, SourceInfo):  # other operations leave what is cached of it as it is
        context.engine.clear_caches()


SUBJECTS = {
    STREAM: Subject("/streams/{stream:str}", {"stream": StreamRef}, "Streams", _stream),
    CONSUMER: Subject(
        "/streams/{stream:str}/consumers/{consumer:str}",
        {"stream": StreamRef, "consumer": ConsumerRef},
        "Consumers",
        _consumer,
    ),
    CONSUMER + "/dead_letters": Subject(
        "/streams/{stream:str}/consumers/{consumer:str}/dead_letters",
        {"stream": StreamRef, "consumer": ConsumerRef},
        "Dead letters",
        _consumer,
    ),
    SOURCE: Subject("/sources/{source:str}", {"source": SourceRef}, "Change capture", _source, _source_changed),
    SCHEDULE: Subject("/schedules/{schedule:str}", {"schedule": ScheduleRef}, "Schedules", _schedule),
    DATABASE: Subject("/databases/{database:str}", {"database": DatabaseRef}, "Databases", _of_all_streams),
    TOKEN: Subject("/tokens/{token:str}", {"token": TokenRef}, "Tokens", _of_all_streams, _token_changed),
}
"""The kinds of objects by the beginning of their paths."""

_SECTIONS = re.compile(r"\n\n(?:Args|Returns|Raises):|\sRaises `")
"""Where a docstring ends to describe what a route does."""

_METHODS = {"GET": get, "POST": post, "DELETE": delete}


def _route(name: str, operation: Operation) -> HTTPRouteHandler:
    """Make the route of an operation."""
    beginning = max((path for path in SUBJECTS if operation.path.startswith(path)), key=len)
    subject = SUBJECTS[beginning]
    form = operation.by_answer(
        Form(Success, _success), _counted, _listed, lambda type_: Form(SHOWN.get(type_, type_), _shown)
    )
    in_query = structs.fields(operation.body) if operation.body is not None and operation.method == "GET" else ()

    async def handle(request: Any, context: RouteContext, data: Any = None, **given: Any) -> Any:
        query = {field.name: given.pop(field.name) for field in in_query}
        names = await subject.find(context, request, operation.need, **given)
        body = operation.body() if data is None and operation.body is not None and not in_query else data
        arguments = query if body is None else structs.asdict(body)
        result = await getattr(context.admin, name)(*names, **arguments)
        if operation.changes:
            subject.changed(context, result)
        return await form.make(context, result)

    parameters: dict[str, Any] = {"request": AnyRequest, "context": Context, **subject.refs}
    made = [Parameter(one, Parameter.KEYWORD_ONLY) for one in parameters]
    for field in in_query:
        default = Parameter.empty if field.required else field.default
        parameters[field.name] = _query_parameter(field.type)
        made.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default))
    if operation.body is not None and not in_query:
        parameters["data"] = JSONBody[Optional[operation.body]]  # type: ignore[misc,name-defined] # noqa: UP045 - of a value
        made.append(Parameter("data", Parameter.KEYWORD_ONLY, default=None))
    handle.__name__ = handle.__qualname__ = name if operation.method != "GET" else f"read_{name}"
    handle.__signature__ = Signature(made)  # type: ignore[attr-defined]
    handle.__annotations__ = {**parameters, "return": form.type}
    decorate: Callable[[Any], HTTPRouteHandler] = _METHODS[operation.method](
        subject.path + operation.path.removeprefix(beginning),
        effect="change" if operation.changes else "read",
        summary=operation.summary,
        description=_SECTIONS.split(cleandoc(getattr(Admin, name).__doc__ or ""))[0],
        tags=[subject.tag],
        status_code=operation.status,
    )
    return decorate(handle)


def _query_parameter(type_: Any) -> Any:
    """Return the parameter for a field, whose description and limits are those of its `Meta`."""
    base, *metas = get_args(type_) if get_origin(type_) is Annotated else (type_,)
    for one in get_args(base):
        if get_origin(one) is Annotated:  # of a value or None
            base, *inner = get_args(one)
            base, metas = base | None, metas + inner
    limits = ("description", "ge", "gt", "le", "lt", "max_length")
    described = {name: value for meta in metas for name in limits if (value := getattr(meta, name, None)) is not None}
    return Annotated[base, QueryParameter(**described)]


class Form(NamedTuple):
    """The form of an answer: its type, and what makes it of the result of the method."""

    type: Any
    make: Callable[[RouteContext, Any], Awaitable[Any]]


async def _shown(context: RouteContext, record: Any) -> Any:
    """Return a record in the form of answers, with what the caller may see of it."""
    if isinstance(record, ConsumerInfo):
        record = await context.visible(record)
    form = SHOWN.get(type(record))
    return record if form is None else form.of(record)


async def _success(context: RouteContext, result: None) -> Success:
    return Success(success=True)


def _counted(count: Count) -> Form:
    async def make(context: RouteContext, result: int) -> Any:
        return {"data": {count.field: result}}

    counted = defstruct(count.field.title(), [(count.field, int)])
    return Form(defstruct(f"{count.field.title()}Answer", [("data", counted)]), make)


def _listed(type_: Any) -> Form:
    async def make(context: RouteContext, result: Sequence[Any]) -> Any:
        return Listed([await _shown(context, one) for one in result])

    return Form(Listed[SHOWN.get(type_, type_)], make)  # type: ignore[misc]


ROUTES: Final[Sequence[HTTPRouteHandler]] = tuple(_route(name, operation) for name, operation in OPERATIONS.items())
