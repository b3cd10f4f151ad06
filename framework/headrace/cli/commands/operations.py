"""The commands of operations, made of the rows of `headrace.admin.requests.operations`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from msgspec import structs

from headrace.admin.requests.operation import CONSUMER, Command, Count, Operation
from headrace.admin.requests.operations import OPERATIONS
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.connection.consumer_lookup import ConsumerArguments, find_consumer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, YesOption
from headrace.cli.options.selection import options_of
from headrace.cli.output.formats import text_of
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list
from headrace.cli.output.stderr import confirm
from headrace.cli.output.tables import print_pairs
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration


EXAMPLES = {row.name: row.example for one in OPERATIONS.values() if (row := one.command) is not None and row.example}
"""The examples of rows by their commands."""


def commands_of(group: str) -> Iterator[tuple[str, tuple[Callable[..., int], str]]]:
    """Yield the commands of a group by their names in it, each with its function and its arguments as the usage shows them."""
    for name, operation in OPERATIONS.items():
        called = operation.command
        if called is not None and called.name.rpartition(" ")[0] == group:
            usage = "[STREAM] NAME" if operation.path.startswith(CONSUMER) else _word(operation, called)
            yield called.name.split()[-1], (_command(name, operation, called), usage)


def _command(method: str, operation: Operation, called: Command) -> Callable[..., int]:
    """Make the command of an operation that calls this method of `Admin`."""

    async def call(admin: Administration, words: Sequence[str], arguments: dict[str, Any], sure: bool) -> Any:
        if operation.path.startswith(CONSUMER):
            words = await find_consumer(admin, words)
        names = dict(zip(operation.names, words, strict=True))
        if called.question and not sure and not await confirm(called.question.format(**names)):
            return None
        return names, await getattr(admin, method)(*words, **arguments)

    def command(
        *words: str,
        backend: Backend = Backend(),  # noqa: B008 - frozen
        json: bool = False,
        yes: bool = False,
        options: Any = None,
    ) -> int:
        given = {} if options is None else options.criteria()
        arguments = {name: value for name, value in given.items() if value is not None}
        outcome = administer(backend, call, words, arguments, backend.skips_confirmation(yes))
        if outcome is None:
            return NOT_DONE
        names, result = outcome
        print_answer(operation, called, names, result, json)
        return NOT_DONE if isinstance(operation.answer, Count) and not result else 0

    parameters = {"backend": (Backend, Backend()), "json": (JsonOption, False)}
    if called.question:
        parameters = {"yes": (YesOption, False), **parameters}
    if operation.body is not None:
        options = options_of(operation.body)
        required = any(field.required for field in structs.fields(operation.body))
        parameters = {"options": (options, Parameter.empty if required else options()), **parameters}
    made = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=type_, default=default)
        for name, (type_, default) in parameters.items()
    ]
    signature = Signature([*_words(operation, called), *made])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    command.__doc__ = f"{operation.summary}.\n\n{called.help}".rstrip()
    return command


def _kind(operation: Operation) -> str:
    """Return the kind of object that the path names: `stream`, `source`, …"""
    return operation.path.split("/")[2].removesuffix("s")


def _word(operation: Operation, called: Command) -> str:
    """Return the word for the name in the path: `NAME` in the object's own group."""
    own = called.name.startswith(_kind(operation))
    return "" if not operation.names else "NAME" if own else _kind(operation).upper()


def _words(operation: Operation, called: Command) -> Iterator[Parameter]:
    """Yield the parameters for the names in the path."""
    if operation.path.startswith(CONSUMER):
        yield Parameter("words", Parameter.VAR_POSITIONAL, annotation=ConsumerArguments)
        return
    for name in operation.names:
        help = f"The {_kind(operation)}'s {'name or id' if name == 'ref' else 'name'}."  # noqa: A001 - as Parameter has it
        yield Parameter(
            name,
            Parameter.POSITIONAL_ONLY,
            annotation=Annotated[str, cyclopts.Parameter(name=_word(operation, called), help=help)],
        )


_Case = tuple[Any, Any, Callable[[], None]]
"""A result as JSON, as `done` has it, and what prints it if there is no `done`."""


def print_answer(operation: Operation, called: Command, names: dict[str, str], result: Any, json: bool) -> None:
    """Print what an operation has returned, as its command says, or as JSON."""

    def counted(answer: Count) -> _Case:
        text = count(result, answer.unit)
        return {answer.field: result}, text, lambda: print(f"{answer.field.capitalize()}: {text}.")

    def several(type_: Any) -> _Case:
        fields = called.fields or type_.__struct_fields__
        rows = [[getattr(record, name) for name in fields] for record in result]
        return result, result, lambda: print_list(rows, json, fields, list, empty="There are none.")

    def one(type_: Any) -> _Case:
        fields = called.fields or type_.__struct_fields__
        return result, result, lambda: print_pairs((name, text_of(getattr(result, name))) for name in fields)

    done = {"deleted": names[operation.names[-1]]} if operation.method == "DELETE" else names
    nothing: _Case = done, None, lambda: None
    as_json, value, print_text = operation.by_answer(nothing, counted, several, one)
    if json:
        print_json(as_json)
    elif called.done:
        print(called.done.format(**names, result=value))
    else:
        print_text()
