"""Analyses your handler function: what it takes, in which order, and how its payload is decoded.

The annotation of a parameter decides what it takes, whatever its place:

    Message      the message                       Batch         the batch, in a batch handler
    Transaction  in a transactional handler        Depends[T]    a dependency
    anything else, once: the payload, decoded into that type. In a batch handler it is `list[Order]`, decoded one by one
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.text.pydantic_json import has_model, model_decoder
from headrace.runtime.handlers.dependencies import dependency_of
from headrace.runtime.handlers.signature import annotated, is_async, name_of
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.transaction import Transaction

Decode = Callable[[str], Any]
Role = Literal["payload", "delivery", "transaction", "dependency"]

_ROLES: dict[type, Role] = {Message: "delivery", Batch: "delivery", Transaction: "transaction"}


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a handler. `takes` is the type of a payload or a dependency."""

    name: str
    role: Role
    takes: Any
    by_name: bool


class Handler:
    """A handler that is ready to run.

    Attributes:
        name: the function's name.
        decode: decodes JSON text into the annotated type. Raises `msgspec.MsgspecError` when it
            doesn't fit.
        is_async: whether it is a coroutine function.
        takes: the annotated type of one payload, or `Any`.
        dependencies: the types of its dependencies, by parameter name.
        takes_payload_only: whether the function is called with the payload and nothing else.
        apply: the function, called with (payload, delivery), which are passed in the order of its
            own parameters, and with its dependencies by name.

    Args:
        batch: whether it takes many messages at a time.
        transactional: whether it runs in a transaction.
        carries: the type of the stream's payloads, which are decoded into it. By default the annotation decides.
    """

    def __init__(
        self, function: Callable[..., Any], *, batch: bool = False, transactional: bool = False, carries: Any = Any
    ) -> None:
        self.name = name_of(function)
        _check_function(function, self.name)
        self.function = function
        self.is_async = is_async(function)
        self.batch = batch
        self.parameters = _parameters(function, self.name)
        self._check(transactional)
        payload = next((p.takes for p in self.parameters if p.role == "payload"), Any)
        self.takes = _item(payload, self.name) if batch else payload
        self.decode: Decode = decoder_of(self.takes if carries is Any else carries, f"The handler {self.name!r} takes")
        self.dependencies: Mapping[str, Any] = {p.name: p.takes for p in self.parameters if p.role == "dependency"}
        self.apply: Callable[..., Any] = self._applied()
        self.takes_payload_only = [(p.role, p.by_name) for p in self.parameters] == [("payload", False)]

    def _check(self, transactional: bool) -> None:
        delivers, wrong = (Batch, Message) if self.batch else (Message, Batch)
        for parameter in self.parameters:
            if parameter.role == "delivery" and _is(parameter.takes, wrong):
                raise ConfigurationError(
                    f"The handler {self.name!r} takes a {wrong.__name__} ({parameter.name!r}), and is given a {delivers.__name__}:"
                    f" {'leave batch=… out' if self.batch else 'pass batch=100'}, or take a {delivers.__name__}."
                )
            if parameter.role == "transaction" and not transactional:
                raise ConfigurationError(
                    f"The handler {self.name!r} takes a Transaction ({parameter.name!r}): pass transactional=True."
                )

    def _applied(self) -> Callable[..., Any]:
        """Return a fast adapter for the usual parameter orders, or a general one for all others."""
        function = self.function
        match [(p.role, p.by_name) for p in self.parameters]:
            case [("payload", False), ("delivery", False)]:
                return function
            case [("delivery", False), ("payload", False)]:
                return lambda payload, delivery: function(delivery, payload)
            case [("payload", False)]:
                return lambda payload, _delivery: function(payload)
            case [("delivery", False)]:
                return lambda _payload, delivery: function(delivery)
            case []:
                return lambda _payload, _delivery: function()
        return self._apply_any

    def _apply_any(self, payload: Any, delivery: Any, **dependencies: Any) -> Any:
        given, named = [], {}
        for parameter in self.parameters:
            match parameter.role:
                case "payload":
                    value = payload
                case "delivery":
                    value = delivery
                case "transaction":
                    value = delivery.transaction
                case "dependency":
                    value = dependencies[parameter.name]
            if parameter.by_name:
                named[parameter.name] = value
            else:
                given.append(value)
        return self.function(*given, **named)


def _check_function(function: Any, name: str) -> None:
    if not callable(function):
        raise ConfigurationError(f"A handler is a function, not {type(function).__name__}.")
    if isinstance(function, type):
        raise ConfigurationError(
            f"A handler is a function, not the class {name!r}: hand in an object of it, {name}(…)."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"The handler {name!r} is a generator, and would never run: leave `yield` out. For a teardown, declare a"
            " dependency with @app.provide. To publish messages, return them, with publishes='a-stream'."
        )


def _parameters(function: Callable[..., Any], name: str) -> list[Parameter]:
    """Return the parameters that are passed a value. Others keep their defaults."""
    found: list[Parameter] = []
    skipped = False
    for parameter, annotation in annotated(function, f"The handler {name!r}"):
        role, takes = _role(annotation)
        if not _wanted(parameter, role, found, name):
            skipped = True  # later parameters can no longer be passed by position
            continue
        if skipped and parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"The handler {name!r} has the positional-only parameter {parameter.name!r} behind one that keeps its default:"
                " put it in front of that, or leave the '/' out."
            )
        found.append(Parameter(parameter.name, role, takes, skipped or parameter.kind is parameter.KEYWORD_ONLY))
    if not found and any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
        raise ConfigurationError(
            f"The handler {name!r} takes *args, which are passed nothing: name its parameters. If it is a decorator's wrapper,"
            " put @functools.wraps(function) above it, which shows the parameters of your function."
        )
    return found


def _wanted(parameter: inspect.Parameter, role: Role, found: list[Parameter], name: str) -> bool:
    """Whether a parameter is passed a value, or keeps its default. Raises `ConfigurationError` for an
    extra parameter without one."""
    optional = parameter.default is not parameter.empty
    if role == "payload" and parameter.kind is parameter.KEYWORD_ONLY:
        if not optional:
            raise ConfigurationError(
                f"The handler {name!r} has a keyword-only parameter {parameter.name!r}: give it a default, or annotate it"
                " as a dependency, Depends[…]."
            )
        return False
    if role != "dependency" and any(other.role == role for other in found):
        if not optional:
            raise ConfigurationError(
                f"The handler {name!r} takes more than a payload and a message ({parameter.name!r} is one too many): write"
                " `async def handler(order: Order, message: Message)`; dependencies are annotated as Depends[…]."
            )
        return False
    return True


def _role(annotation: Any) -> tuple[Role, Any]:
    needed = dependency_of(annotation)
    if needed is not None:
        return "dependency", needed
    for kind, role in _ROLES.items():
        if _is(annotation, kind):
            return role, annotation
    return "payload", annotation


def _is(annotation: Any, kind: type) -> bool:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(_is(part, kind) for part in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _item(payload: Any, name: str) -> Any:
    """Return the type of one message of a batch, from `list[Order]` or `Sequence[Order]`."""
    if payload in (Any, list, tuple):
        return Any
    origin, items = typing.get_origin(payload), typing.get_args(payload)
    if isinstance(origin, type) and issubclass(list, origin) and len(items) == 1:
        return items[0]
    raise ConfigurationError(
        f"The handler {name!r} takes batches, and its payload is {payload!r}: annotate it as a list, such as list[Order]."
    )


def decoder_of(payload: Any, subject: str) -> Decode:
    """Return the decoder of a type.

    Args:
        subject: what has the type, for errors, such as "The handler 'ship' takes".

    Raises:
        ConfigurationError: the type can't be decoded from JSON.
    """
    try:
        if has_model(payload):
            return model_decoder(payload)
        decoder = msgspec.json.Decoder(payload)
        custom = _custom_type(msgspec.inspect.type_info(payload), set())
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{subject} {payload!r}, which can't be decoded from JSON: {error}.") from error
    if custom is not None:
        raise ConfigurationError(
            f"{subject} {custom.__name__!r}, which can't be decoded from JSON: make it a msgspec.Struct,"
            " a pydantic model, a dataclass, a TypedDict, or a built-in type."
        )
    return decoder.decode


def _custom_type(info: Any, seen: set[int]) -> type | None:
    """Return a class somewhere inside the type that msgspec can't decode, or None."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if isinstance(info, (list, tuple)):
        return next((found for part in info if (found := _custom_type(part, seen))), None)
    if not isinstance(info, msgspec.Struct) or id(info) in seen:
        return None
    seen.add(id(info))
    return next(
        (found for field in info.__struct_fields__ if (found := _custom_type(getattr(info, field), seen))), None
    )
