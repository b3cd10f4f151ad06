"""Names of tables, as in settings and in SQL: `public.orders`, `public."Odd.Name"`."""

from __future__ import annotations

import re

from headrace.model.errors import ConfigurationError
from headrace.model.text import sql

MAX_PART_BYTES = 255  # bytes. A server allows 63, unless it was built with another limit

MAX_NAME = 2 * (2 * MAX_PART_BYTES + 2) + 1
"""Characters of the longest `schema.table`: two parts in quotes, of quotes only."""

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAME = re.compile(rf"({_PART})\.({_PART})")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")

# The words that `quote_ident` quotes: select word from pg_get_keywords() where catcode <> 'U'
# (PostgreSQL 18)
_KEYWORDS = """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast char
    character check coalesce collate collation column concurrently constraint create cross current_catalog current_date
    current_role current_schema current_time current_timestamp current_user dec decimal default deferrable desc distinct do else
    end except exists extract false fetch float for foreign freeze from full grant greatest group grouping having ilike in
    initially inner inout int integer intersect interval into is isnull join json_array json_arrayagg json_object json_objectagg
    lateral leading least left like limit localtime localtimestamp national natural nchar none normalize not notnull
    null nullif numeric offset on only or order out outer overlaps overlay placing position precision primary real references
    returning right row select session_user setof similar smallint some substring symmetric system_user table tablesample then
    time timestamp to trailing treat trim true union unique user using values varchar variadic verbose when where window with
    xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """
_KEYWORD_SET = frozenset(_KEYWORDS.split())


def split(name: str) -> tuple[str, str]:
    """Return the schema and the table of `schema.table`, without quotes.

    Raises:
        ConfigurationError: the name is invalid. The message says what would be valid.
    """
    if not isinstance(name, str) or not (found := _NAME.fullmatch(name)):
        raise ConfigurationError(f"The table name {_shortened(name)} is invalid. {_advice(name)}.")
    parts = [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in found.groups()]
    for part, written in zip(parts, found.groups(), strict=True):
        if written[0] != '"' and written != written.lower():
            raise ConfigurationError(
                f"The table name {_shortened(name)} has upper case without quotes. Write {joined(*parts)} if the table has upper case, or"
                f" {joined(*(part.lower() for part in parts))}."
            )
        if "\0" in part or not _is_text(part) or len(part.encode()) > MAX_PART_BYTES:
            raise ConfigurationError(
                f"The table name {_shortened(name)} is invalid. A part has at most {MAX_PART_BYTES} bytes of text."
            )
    return parts[0], parts[1]


def canonical(name: str) -> str:
    """Return the name with quotes only where they are needed. Raises `ConfigurationError`."""
    return joined(*split(name))


def joined(schema: str, table: str) -> str:
    """Return `schema.table`, quoted as by the server's `quote_ident`."""
    return f"{quoted(schema)}.{quoted(table)}"


def quoted(part: str) -> str:
    """Return one name, in double quotes if SQL needs them."""
    if _PLAIN.fullmatch(part) and part not in _KEYWORD_SET:
        return part
    return sql.quoted(part)


def _advice(name: object) -> str:
    if isinstance(name, str) and re.fullmatch(_PART, name):
        return f"Add the schema, such as public.{name}"
    return 'Write public.orders, or public."Odd.Name" if a part is not plain lower case'


def _shortened(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 120 else text[:117] + "…"


def _is_text(part: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in part)
