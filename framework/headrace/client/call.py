"""A row of the table of calls, and the method of `Remote` that it makes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from inspect import Parameter, Signature
from string import Formatter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.client.answers import ListPage
from headrace.client.request import Request, Response, iso, path_of, query_of
from headrace.model.errors import HeadraceError
from headrace.model.pages import BoundList

if TYPE_CHECKING:
    from headrace.client.transport import Transport

REQUIRED: Any = Parameter.empty


class Argument(msgspec.Struct, frozen=True):
    """An argument that is sent in the query of a GET or DELETE, or in the body of a POST.

    Attributes:
        name: its name in the method of `Admin`.
        default: its default in the method of `Admin`.
        sent_as: its name in the API. None for the same name.
        convert: makes the value that the API takes. The values None and False are not sent.
    """

    name: str
    default: Any = REQUIRED
    sent_as: str | None = None
    convert: Callable[[Any], Any] | None = None

    def value(self, argument: Any) -> Any:
        """Return the value that is sent."""
        if self.convert is not None:
            return self.convert(argument)
        if isinstance(argument, datetime):
            return iso(argument)
        if isinstance(argument, Sequence) and not isinstance(argument, str):
            return list(argument)
        return argument


class Body(msgspec.Struct, frozen=True):
    """An argument that is sent as the body, beside other arguments: the spec of a POST, or the `**changes` of a PATCH.

    Attributes:
        name: its name in the method of `Admin`.
        value: makes the body.
    """

    name: str
    value: Callable[[Any], dict[str, Any]]
    default: Any = REQUIRED


def sent(values: Mapping[str, Any], arguments: Iterable[Argument | Body]) -> dict[str, Any]:
    """Return what is sent of these values of arguments."""
    body: dict[str, Any] = {}
    for argument in arguments:
        value = argument.value(values[argument.name])
        if isinstance(argument, Body):
            body |= value
        elif value is not None and value is not False:
            body[argument.sent_as or argument.name] = value
    return body


class Sends(Protocol):
    """An object that has a transport. See `headrace.client.remote`."""

    @property
    def transport(self) -> Transport: ...

    @property
    def unavailable(self) -> set[str]: ...


class Call:
    """One call of the HTTP API. In the class `Calls` it is a method, with the signature and the
    docstring of the method of `Admin` that has its name.

    Args:
        method: GET, POST, PATCH or DELETE.
        path: a template. The names in it are the first arguments of the method.
        arguments: the other arguments, in the order in which they are sent.
        answer: makes the method's result of a successful response. Without it, the result is None.
        path_for_all: the path if the first argument is None.
        constants: values that are sent besides the arguments.
        extra_time: seconds that the server may take in addition to the timeout of every request, or
            the name of the argument that has them.
        on_error: an error of the server that is a result, and a function that makes this result.
    """

    def __init__(
        self,
        method: str,
        path: str,
        *arguments: Argument | Body,
        answer: Callable[[Response], Any] = lambda _: None,
        path_for_all: str | None = None,
        constants: Mapping[str, Any] | None = None,
        extra_time: float | str = 0.0,
        on_error: tuple[type[HeadraceError], Callable[[Any], Any]] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.path_for_all = path_for_all
        self.name = ""
        self._in_path = [name for _, name, _, _ in Formatter().parse(path) if name]
        self._arguments = arguments
        self._answer = answer
        self._constants = dict(constants or {})
        self._extra_time = extra_time
        self._on_error = on_error
        self.signature = Signature(self._parameters())

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, remote: Sends | None, owner: type) -> Callable[..., Any]:
        return self._documented() if remote is None else partial(self.send, remote.transport)

    async def send(self, transport: Transport, /, *args: Any, **kwargs: Any) -> Any:
        """Send the request for these arguments. Returns the result of the call."""
        request = self.request(*args, **kwargs)
        try:
            response = await transport.send(request)
        except HeadraceError as error:
            if self._on_error is None or not isinstance(error, self._on_error[0]):
                raise
            return self._on_error[1](error)
        return self._answer(response)

    def request(self, /, *args: Any, **kwargs: Any) -> Request:
        """Return the request for these arguments. Raises `TypeError` and `InvalidInput` for invalid ones."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        given = {**sent(values, self._arguments), **self._constants}
        in_query = self.method in ("GET", "DELETE")
        return Request(
            method=self.method,
            path=self._path(values),
            query=query_of(given) if in_query else (),
            body=None if in_query else given,
            extra_time=values[self._extra_time] if isinstance(self._extra_time, str) else self._extra_time,
        )

    def _path(self, values: Mapping[str, Any]) -> str:
        if self.path_for_all is not None and values[self._in_path[0]] is None:
            return self.path_for_all
        return path_of(self.path, {name: values[name] for name in self._in_path})

    def _parameters(self) -> list[Parameter]:
        """The parameters of the method. They don't say which ones are keyword-only."""
        patch = self.method == "PATCH"  # whose body is `**changes`, and may have the names that are in the path
        kind = Parameter.POSITIONAL_ONLY if patch else Parameter.POSITIONAL_OR_KEYWORD
        default = REQUIRED if self.path_for_all is None else None
        parameters = [Parameter(name, kind, default=default) for name in self._in_path]
        if patch:
            return [*parameters, Parameter(self._arguments[0].name, Parameter.VAR_KEYWORD)]
        return parameters + [Parameter(argument.name, kind, default=argument.default) for argument in self._arguments]

    def _documented(self) -> Callable[..., Any]:
        """The method as a function of the class, for `help` and `inspect`."""
        from headrace.admin import Admin  # imported late, because it imports the database's driver

        @wraps(getattr(Admin, self.name))
        async def method(remote: Sends, /, *args: Any, **kwargs: Any) -> Any:
            return await self.__get__(remote, type(remote))(*args, **kwargs)

        return method


class ListCall(Call):
    """A call that lists objects, at most `limit`. It sends requests until the list ends or has so many.

    Args:
        path, arguments: as for `Call`. One argument is `limit`, and None for it lists all.
        order: the key by which the whole list is sorted. None for the order of the answers.
        options: `path_for_all`, `extra_time` and `answer`, as for `Call`. The answer is a page.
    """

    def __init__(
        self, path: str, *arguments: Argument, order: Callable[[Any], Any] | None = None, **options: Any
    ) -> None:
        super().__init__("GET", path, *arguments, **options)
        self._order = order

    def __get__(self, remote: Sends | None, owner: type) -> Callable[..., Any]:
        return self._documented() if remote is None else BoundList(partial(self._pages, remote), self._order)

    async def _pages(self, remote: Sends, /, *args: Any, **kwargs: Any) -> AsyncIterator[list[Any]]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        rest: int | None = bound.arguments["limit"]
        request = self.request(**bound.arguments)
        while True:
            page: ListPage[Any] = self._answer(await remote.transport.send(request))
            remote.unavailable.update(page.unavailable)
            if page.data:
                yield page.data
            rest = None if rest is None else rest - len(page.data)
            if page.next is None or (rest is not None and rest <= 0):
                return
            bound.arguments["limit"] = rest
            request = self.request(**bound.arguments)
            request = msgspec.structs.replace(request, query=(*request.query, *query_of({"after": page.next})))
