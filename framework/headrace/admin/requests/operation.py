"""The type of an operation, see `headrace.admin.requests.operations`."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any, TypeVar, get_args

from msgspec import Struct

from headrace.model.tokens import Need

T = TypeVar("T")

# The paths of objects. The names in them are those of the first arguments of a method.
CONSUMER = "/v1/streams/{stream}/consumers/{name}"
DATABASE = "/v1/databases/{name}"
SCHEDULE = "/v1/schedules/{name}"
SOURCE = "/v1/sources/{ref}"
STREAM = "/v1/streams/{stream}"
TOKEN = "/v1/tokens/{ref}"

CONDITION_TIME = 30.0
"""Seconds in which a server evaluates a condition on messages."""

CAPTURE_TIME = 30.0
"""Seconds in which a server queries a captured database."""


class Count(Struct, frozen=True):
    """An answer that counts: `{"data": {field: count}}`. The method returns the count.

    Attributes:
        field: its field.
        unit: one of the things that are counted.
    """

    field: str
    unit: str = "message"


class Command(Struct, frozen=True):
    """The command of an operation. Its help begins with the operation's summary.

    Attributes:
        name: its group and its name in the group.
        help: the rest of its help.
        done: the line that it prints, a template with the names in the operation's path, and `result`, what the method has
            returned. Without one it prints the result.
        fields: the fields of the result that it prints. By default all.
        question: asked first, a template with the names in the path.
        example: command lines at the end of its help.
    """

    name: str
    help: str = ""
    done: str = ""
    fields: tuple[str, ...] = ()
    question: str = ""
    example: str = ""


class Operation(Struct, frozen=True):
    """The request of an operation.

    Attributes:
        method: GET, POST or DELETE.
        path: the path of the object, and the rest.
        summary: what it does, in a few words.
        answer: what the method returns: a `Count`, the type of an object, a list of a type, or None.
        body: the type of the request's body, or of its query if it is a GET. Its fields are the other arguments of the
            method.
        example: a body.
        status: the status of the answer.
        changes: whether it changes something.
        extra_time: seconds that it may take in addition to the timeout of every request.
        command: its command. None if the command has code of its own, or there is none.
    """

    method: str
    path: str
    summary: str
    answer: Any = None
    body: type[Struct] | None = None
    example: dict[str, Any] | None = None
    status: int = 200
    changes: bool = True
    extra_time: float = 0.0
    command: Command | None = None

    @property
    def names(self) -> list[str]:
        """The names in the path, which are the first arguments of the method."""
        return [name for _, name, _, _ in Formatter().parse(self.path) if name]

    def by_answer(
        self, nothing: T, count: Callable[[Count], T], several: Callable[[Any], T], one: Callable[[Any], T]
    ) -> T:
        """Return the case of the answer. `several` and `one` get the type of the objects."""
        if self.answer is None:
            return nothing
        if isinstance(self.answer, Count):
            return count(self.answer)
        types = get_args(self.answer)
        return several(types[0]) if types else one(self.answer)

    @property
    def needs_all_streams(self) -> bool:
        """Whether a caller needs the scope for all streams, and not for the one in the path."""
        return not self.path.startswith((STREAM, SCHEDULE))

    @property
    def need(self) -> Need:
        """The scope that a caller needs."""
        return "admin" if self.changes or self.needs_all_streams else "consume"


def read(path: str, summary: str, answer: Any, command: Command | None = None) -> Operation:
    """Return an operation that reads an object."""
    return Operation("GET", path, summary, answer, changes=False, command=command)
