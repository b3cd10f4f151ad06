"""The revisions of the schema that this code knows, as files of SQL.

A revision is a number that only rises. Each has a file in `sql/migrations/`, which changes the tables from the
revision before. The functions, types and views have one text, that of the newest revision. They are created
or replaced, and never dropped, so that grants, and views of users that depend on them, stay.

A migration begins with comments. Two of them have a meaning:

    -- Serves from: 3
    -- Locks: headrace_internal.leases (access exclusive), headrace_internal.acks (share)

`Serves from` is the oldest revision whose processes work with the schema afterwards. Without it, it is that of the
migration before. `Locks` are the locks that conflict with the work of other processes. A test compares them with
the locks that the migration takes.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files

import msgspec

SQL = files("headrace.store") / "sql"

# Generated from all functions, also the retired ones.
LAST = ("_granted", "_epilogue")

_SERVES_FROM = re.compile(r"^-- Serves from: (\d+)$", re.MULTILINE)
_LOCKS = re.compile(r"^-- Locks: (.+(?:\n--  .+)*)$", re.MULTILINE)
_LOCK = re.compile(r"([\w.]+) \(([a-z ]+)\)")

_GRANTED = re.compile(r"^-- Granted: (\w+)\ncreate or replace function headrace_internal\.(\w+)\(", re.MULTILINE)
_TYPE = re.compile(r"^create type ([\w.]+) as \(.*?^\);$", re.MULTILINE | re.DOTALL)
_VIEW = re.compile(r"^create or replace view ([\w.]+)( with \([a-z_, ]+\))? as\n(.*?);$", re.MULTILINE | re.DOTALL)


class Migration(msgspec.Struct, frozen=True):
    """One revision of the schema.

    Attributes:
        version: its number.
        name: its name, a few words.
        sql: its statements.
        serves_from: the oldest revision whose processes work with it.
        locks: the locks that it takes on tables of the revision before: a table, and a mode in lower case.
    """

    version: int
    name: str
    sql: str
    serves_from: int = 1
    locks: tuple[tuple[str, str], ...] = ()


@functools.cache
def _found() -> tuple[Migration, ...]:
    folder = SQL / "migrations"
    found: list[Migration] = []
    for name in sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql")):
        text = (folder / name).read_text(encoding="utf-8")
        serves_from = _SERVES_FROM.search(text)
        locks = _LOCKS.search(text)
        found.append(
            Migration(
                version=int(name[:4]),
                name=name[5:-4],
                sql=text,
                serves_from=int(serves_from[1]) if serves_from else found[-1].serves_from if found else 1,
                locks=tuple((one[1], one[2]) for one in _LOCK.finditer(locks[1])) if locks else (),
            )
        )
    return tuple(found)


def migrations() -> list[Migration]:
    """All migrations that this code knows, in order."""
    return list(_found())


def newest_revision() -> int:
    """The revision of this code."""
    return migrations()[-1].version


@functools.cache
def functions() -> str:
    """The statements that create or replace all functions, types and views.

    Types are created if they don't exist. A type that changes gets a new name. Views are replaced only if they
    differ, because that takes a lock for which all readers would wait, such as a dump that runs for hours.
    """
    # In the order of their dependencies: types before the functions that use them.
    ordered = (SQL / "functions" / "order.txt").read_text(encoding="utf-8").split()
    names = [*(f"functions/{name}.sql" for name in ordered), *retired(), *(f"functions/{name}.sql" for name in LAST)]
    text = "\n".join((SQL / name).read_text(encoding="utf-8") for name in names)
    granted = ", ".join(f"('{privilege}', '{name}')" for privilege, name in _GRANTED.findall(text))
    return _VIEW.sub(_if_different, _TYPE.sub(_if_missing, text.replace("%(granted)s", granted)))


def retired() -> list[str]:
    """The files of functions that only older releases call, relative to the folder of SQL."""
    found = sorted(entry.name for entry in (SQL / "retired").iterdir())
    return [f"retired/{name}" for name in found if name.endswith(".sql")]


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _if_missing(statement: re.Match[str]) -> str:
    return f"do $type$ begin if to_regtype('{statement[1]}') is null then\n{statement[0]}\nend if; end $type$;"


def _if_different(statement: re.Match[str]) -> str:
    name, options, query = statement[1], statement[2] or "", statement[3]
    draft = "headrace_internal.draft_of_a_view"
    return (
        f"do $view$ begin create view {draft}{options} as\n{query};\n"
        f"if (select format('%s %s', pg_get_viewdef(oid), reloptions) from pg_class where oid = to_regclass('{name}'))\n"
        f"    is distinct from (select format('%s %s', pg_get_viewdef(oid), reloptions) from pg_class where oid = '{draft}'::regclass)\n"
        f"then\n{statement[0]}\nend if; drop view {draft}; end $view$;"
    )
