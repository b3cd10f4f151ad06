"""The constraints that streams had before revision 18."""

from __future__ import annotations

from headrace import store

OLD_CHECKS = r"""
alter table headrace_streams.{stream} drop constraint valid_message,
    add constraint valid_key check (octet_length(key) <= 1024 and key !~
        '(^|\.)[*>]?(\.|$)|[\u0001-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'),
    add constraint no_nul check (position('\u0000' in data::text) = 0 or data::text !~ '(^|[^\\])(\\\\)*\\u0000'),
    add constraint headers_are_objects check (headers is null or json_typeof(headers) = 'object'),
    add constraint message_size check (
        pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= 700000
        or octet_length(data::text) + coalesce(octet_length(headers::text), 0) <= 200000000)
"""

CHECKS = """
select array_agg(distinct conname::text order by conname::text) from pg_constraint
where connamespace = 'headrace_streams'::regnamespace and contype = 'c'
"""


async def give_old_checks(database: store.Database, stream: str = "orders") -> None:
    """Give the table of a stream the constraints of older releases."""
    await database.fetch(OLD_CHECKS.replace("{stream}", stream))


async def checks(database: store.Database) -> list[str]:
    """The names of the check constraints of all streams and segments."""
    return list(await database.fetchval(CHECKS))
