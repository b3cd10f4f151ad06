"""Headrace's schema in the catalogues of Postgres, to compare an upgraded one with a fresh one."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import store

OURS = "('headrace', 'headrace_internal', 'headrace_granted', 'headrace_streams', 'headrace_staging')"

QUERIES = {
    # Not in their order: a column that is added later is the last one.
    "columns": f"""
        select format('%s.%s.%s %s %s %s %s %s', n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                      pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attstorage)
        from pg_attribute as a join pg_class as c on c.oid = a.attrelid join pg_namespace as n on n.oid = c.relnamespace
        left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
        where n.nspname in {OURS} and a.attnum > 0 and not a.attisdropped and c.relkind <> 'i'""",
    "relations": f"""
        select format('%s %s %s %s %s %s %s', c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, c.relacl, c.relreplident,
                      obj_description(c.oid, 'pg_class'))
        from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname in {OURS} and c.relkind <> 't'""",
    "indexes": f"select indexdef from pg_indexes where schemaname in {OURS}",
    "views": f"select format('%s.%s %s', schemaname, viewname, definition) from pg_views where schemaname in {OURS}",
    "constraints": f"""
        select format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(c.oid))
        from pg_constraint as c join pg_namespace as n on n.oid = c.connamespace where n.nspname in {OURS}""",
    "functions": f"""
        select format('%s %s %s', pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid, 'pg_proc'))
        from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace where n.nspname in {OURS}""",
    "schemas": f"select format('%s %s %s', nspname, nspacl, obj_description(oid, 'pg_namespace')) from pg_namespace where nspname in {OURS}",
    "revisions": "select format('%s %s %s', version, name, serves_from) from headrace_internal.migrations",
    "text": "select functions from headrace_internal.migrations order by version desc limit 1",
    "features": "select format('%s %s', name, needs) from headrace_internal.features",
}  # fmt: skip


async def catalogue(dsn: str) -> Mapping[str, list[str]]:
    """All that there is, by kind, sorted."""
    database = store.Database(dsn)
    await database.open()
    try:
        return {kind: sorted(str(row[0]) for row in await database.fetch(query)) for kind, query in QUERIES.items()}
    finally:
        await database.close()


def differences(one: Mapping[str, list[str]], other: Mapping[str, list[str]]) -> list[str]:
    """The entries that only one of two catalogues has, a line each."""
    return [f"{kind}: {line}" for kind in QUERIES for line in sorted({*one[kind]} ^ {*other[kind]})]
