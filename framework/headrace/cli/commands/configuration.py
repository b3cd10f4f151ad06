"""`headrace plan|apply|export`: configuration as code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.admin import configuration
from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import open_database
from headrace.cli.connection.operator import operator
from headrace.cli.errors import CannotCreate, UnreadableInput, UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import DatabaseOption, JsonOption, YesOption, flag
from headrace.cli.output.json_output import print_json
from headrace.cli.output.plans import plan_as_json, print_plan, summary
from headrace.cli.output.stderr import confirm, print_notice
from headrace.cli.processes.event_loop import run_async
from headrace.client.address import Server

if TYPE_CHECKING:
    from headrace.admin.configuration import Declared, Exported, Plan
    from headrace.model.tokens import NewToken

CHANGES = 2
"""The exit code of `plan --detailed-exitcode` if there is something to do."""

MAX_FILES = 1000
_STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")

FileArgument = Annotated[
    str,
    Parameter(
        name="FILE",
        allow_leading_hyphen=True,
        help="Files of YAML or JSON, directories with such files, or - for standard input.",
    ),
]
PruneOption = Annotated[
    bool, flag("Delete what this configuration manages, by its `name`, and the files no longer mention.")
]


def plan(
    *files: FileArgument,
    prune: PruneOption = False,
    detailed_exitcode: Annotated[
        bool, flag("Exit with 2 if there is something to do, and with 0 if there is nothing.")
    ] = False,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> int:
    """Print what `headrace apply` would do, and change nothing.

    It compares the files with the database, and prints each setting that
    differs, with its value now, the new one, and what the change means.
    """
    planned = run_async(_plan, _target(database), _declared(files), prune)
    print_json(plan_as_json(planned)) if json else print_plan(planned)
    return CHANGES if detailed_exitcode and planned.changes else 0


def apply(
    *files: FileArgument,
    prune: PruneOption = False,
    allow_delete: Annotated[
        bool, flag("With --prune, also delete streams with messages, and consumers and captures with a position.")
    ] = False,
    tokens_out: Annotated[
        Path | None,
        Parameter(
            name="--tokens-out",
            show_default=False,
            help="Write the secrets of new tokens to this new file, instead of printing them.",
        ),
    ] = None,
    schema: Annotated[bool, flag("Print the JSON Schema of the files, for editors, and do nothing else.")] = False,
    yes: YesOption = False,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> int:
    """Make streams, consumers, sources, tokens and grants as files declare them.

    Objects and settings that the files don't mention stay as they are. A second call has nothing to do.
    It asks for confirmation if messages or access would be lost. Everything is
    created and changed in one transaction of each database, and deleted after it,
    one by one.
    """
    if schema:
        print_json(configuration.json_schema())
        return 0
    declared = _declared(files)
    made: list[NewToken] = []

    def committed(tokens: Sequence[NewToken]) -> None:
        made.extend(tokens)
        if not json:  # immediately, since the tokens exist, and the deletions may fail
            _print_tokens(tokens, tokens_out)

    secrets = made if tokens_out is None else []
    try:
        applied = run_async(_apply, _target(database), declared, prune, allow_delete, tokens_out, yes, committed)
    except BaseException:
        if json and secrets:
            print_json({"new_tokens": {token.name: token.token for token in secrets}})
        raise
    if applied is None:
        return NOT_DONE
    if json:
        print_json({**plan_as_json(applied), "new_tokens": {token.name: token.token for token in secrets}})
    else:
        print(summary(applied, done=True))
    return 0


def _print_tokens(tokens: Sequence[NewToken], tokens_out: Path | None) -> None:
    """Print the secrets of new tokens, or where they are."""
    if tokens_out is None:
        for token in tokens:
            print(f"{token.name}={token.token}", flush=True)
    if tokens:
        print_notice(
            "Save the secrets of new tokens. They can't be shown again."
            if tokens_out is None
            else f"The secrets of new tokens are in {tokens_out}."
        )


def export(
    *,
    name: Annotated[
        str | None, Parameter(name="--name", show_default=False, help="The configuration's name in the file.")
    ] = None,
    secrets_out: Annotated[
        Path | None,
        Parameter(
            name="--secrets-out",
            show_default=False,
            help="Write the secrets that the file refers to into this new file, as variables for a shell.",
        ),
    ] = None,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Print the present databases, streams, consumers, sources, tokens and grants as a file for `headrace apply`.

    Settings that have their default are left out. Secrets are references to
    variables of the environment.
    """
    exported = run_async(_export, _target(database), name)
    if secrets_out is not None:
        _write_secret(
            secrets_out, "".join(f"{key}={shlex.quote(value)}\n" for key, value in exported.variables.items())
        )
    if json:
        print_json(exported.document)
    else:
        print(exported.text, end="")
    if exported.variables and secrets_out is None:
        print_notice(f"The file refers to {', '.join(exported.variables)}. --secrets-out FILE writes their values.")
    if exported.left_out:
        print_notice(f"Not in the file, since another database has the name: {', '.join(exported.left_out)}.")


def _target(database: str | None) -> str | None:
    """The URL of the database. Raises `UsageError` if commands go to a server."""
    target = Backend(database=database).resolve()
    if isinstance(target, Server):
        raise UsageError(f"Configurations need the database of the server {target.url}. Give --database.")
    return target


def _declared(files: Sequence[str]) -> Declared:
    """Read what files declare. Raises `UsageError`, `UnreadableInput`, `ConfigurationError`."""
    if not files:
        raise UsageError("Name the files, such as headrace.yaml, or - for standard input.")
    problems = configuration.Problems()
    documents = []
    for path in _paths(files):
        text, name = _text(path)
        documents += configuration.read_documents(text, name, os.environ, problems)
    declared = configuration.read(documents, problems)
    problems.raise_any()
    return declared


def _paths(files: Sequence[str]) -> list[str]:
    """The files, with those of directories, each once."""
    paths: dict[str, None] = {}
    for file in files:
        if file.startswith("-") and file != _STDIN:
            raise UsageError(f"There is no option {file}. A file with such a name is ./{file}.")
        if file != _STDIN and Path(file).is_dir():
            inside = sorted(
                str(one) for one in Path(file).iterdir() if one.suffix in _SUFFIXES and not one.name.startswith(".")
            )
            if not inside:
                raise UnreadableInput(f"The directory {file} has no file that ends in {', '.join(_SUFFIXES)}.")
            paths.update(dict.fromkeys(inside))
        else:
            paths[file] = None
    if len(paths) > MAX_FILES:
        raise UsageError(f"There are {len(paths):,} files. A configuration has at most {MAX_FILES:,}.")
    return list(paths)


def _text(path: str) -> tuple[str, str]:
    """The text of a file, and its name for errors."""
    limit = configuration.MAX_BYTES + 1
    try:
        if path == _STDIN:
            raw = sys.stdin.buffer.read(limit)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(limit)
    except OSError as error:
        raise UnreadableInput(f"{path} can't be read: {error.strerror}.") from None
    name = "standard input" if path == _STDIN else path
    return configuration.decoded(raw, name), name


async def _plan(url: str | None, declared: Declared, prune: bool) -> Plan:
    async with open_database(url) as database:
        return await configuration.plan(database, declared, prune=prune)


async def _apply(
    url: str | None,
    declared: Declared,
    prune: bool,
    allow_delete: bool,
    tokens_out: Path | None,
    yes: bool,
    committed: Callable[[Sequence[NewToken]], None],
) -> Plan | None:
    """Apply. Returns None if the plan was not confirmed."""

    def save(tokens: Sequence[NewToken]) -> None:
        if tokens_out is not None:
            _write_secret(tokens_out, "".join(f"{token.name}={token.token}\n" for token in tokens))

    async with open_database(url) as database:
        planned = await configuration.plan(database, declared, prune=prune)
        if planned.changes:
            print_plan(planned, file=sys.stderr)
        configuration.require_allowed(planned, allow_delete=allow_delete)
        if (
            planned.destructive
            and not yes
            and not await confirm("Messages, positions or access may be lost. Apply this?")
        ):
            return None
        done, _ = await configuration.apply(
            database,
            declared,
            expected=planned,
            prune=prune,
            allow_delete=allow_delete,
            save_tokens=save,
            committed=committed,
            actor=operator(),
        )
        return done


async def _export(url: str | None, name: str | None) -> Exported:
    async with open_database(url) as database:
        return await configuration.export(database, name)


def _write_secret(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises `CannotCreate` if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink()  # otherwise the next attempt would find a part of it
            raise
    except FileExistsError:
        raise CannotCreate(f"{path} exists. Nothing was changed. Name a new file, or move this one.") from None
    except OSError as error:
        raise CannotCreate(f"{path} can't be written: {error.strerror}. Nothing was changed.") from None
