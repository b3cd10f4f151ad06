"""Values of a real server become JSON with the same meaning. Cast back by the server, it gives the same value."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from tests.sources.postgres.samples import NEW_VALUES, NONE_CAN_BE_WRITTEN, SAMPLES
from tests.sources.postgres.sessions import Session
from tests.support import servers

BACK = r"""
create function pg_temp.moment(iso text) returns text language sql as $$
    -- ISO 8601 has a year 0; Postgres has 1 BC for it.
    select case when iso !~ '^([+-]\d+|0000)-' then iso
                when year > 0 then year || rest
                else lpad((1 - year)::text, 4, '0') || rest || ' BC' end
      from (select substring(iso from '^([+-]?\d+)-')::int as year, substring(iso from '^[+-]?\d+(-.*)$') as rest) as parts $$;
"""
MOMENTS = {"date", "timestamp", "timestamptz"}


@pytest.fixture(scope="module")
def session(server_dsn: str) -> Iterator[Session]:
    with servers.clone(server_dsn, None) as dsn:
        session = Session(dsn)
        session.rows(BACK)
        yield session
        session.close()


def column_types(session: Session) -> dict[str, str]:
    """Built-in types that a column can have, except arrays, and their kinds in the catalog."""
    found = session.rows(
        """select typname, typtype from pg_type where typnamespace = 'pg_catalog'::regnamespace and typtype in ('b', 'r', 'm')
              and typoutput <> 'array_out'::regproc and typisdefined order by typname"""
    )
    return {name.decode(): kind.decode() for name, kind in found if name is not None and kind is not None}


def kind_of(session: Session, name: str) -> str:
    kind = column_types(session).get(name)
    if kind is None:
        pytest.skip(f"This server has no {name}.")
    if name == "xml" and not session.has_xml:
        pytest.skip("This server was built without libxml.")
    return kind


def samples(session: Session, name: str) -> list[str]:
    late = [value for (of, value), version in NEW_VALUES.items() if of == name and session.version >= version]
    return SAMPLES[name] + late


def back(session: Session, name: str, kind: str, given: str) -> str:
    """Return SQL that makes a value of the type from the JSON of the expression `given`."""
    text = f"({given} #>> '{{}}')"
    if kind == "r":
        [[subtype]] = session.rows("select rngsubtype::regtype from pg_range where rngtypid = $1::regtype", name)
        assert subtype is not None
        bound = (
            f"pg_temp.moment({given} ->> '%s')" if subtype == b"date" or b"stamp" in subtype else f"({given} ->> '%s')"
        )
        low, high = (f"{bound % side}::{subtype.decode()}" for side in ("lower", "upper"))
        bounds = f"{given} ->> 'bounds'"
        return f"case when {bounds} = 'empty' then 'empty' else {name}({low}, {high}, {bounds}) end"
    if kind == "m":
        [[of]] = session.rows("select rngtypid::regtype from pg_range where rngmultitypid = $1::regtype", name)
        assert of is not None
        one = back(session, of.decode(), "r", "one")
        return f"(select coalesce({name}(variadic array_agg({one})), '{{}}') from json_array_elements({given}) as one)"
    if name in ("int2vector", "oidvector"):
        return f"array_to_string(array(select json_array_elements_text({given})), ' ')::{name}"
    if name in ("json", "jsonb"):
        return f"({given})::{name}"
    return f"pg_temp.moment({text})::{name}" if name in MOMENTS else f'{text}::"{name}"'


def test_every_built_in_type_that_a_column_can_have_is_tried(session: Session) -> None:
    assert column_types(session).keys() <= SAMPLES.keys() | NONE_CAN_BE_WRITTEN


@pytest.mark.parametrize("numeric", ["string", "number"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_is_the_same_when_its_json_is_cast_back(session: Session, name: str, numeric: str) -> None:
    kind = kind_of(session, name)
    literals = samples(session, name)
    for literal, converted in zip(literals, session.json(f'"{name}"', literals, numeric=numeric), strict=True):
        json.loads(converted, parse_int=str)
        again = session.value(f'select ({back(session, name, kind, "$1::json")})::"{name}"', converted)
        assert again == session.value(f'select $1::"{name}"', literal)


@pytest.mark.parametrize("name", SAMPLES)
def test_an_array_is_the_same_when_its_json_is_cast_back(session: Session, name: str) -> None:
    kind = kind_of(session, name)
    literals = samples(session, name)
    params = ", ".join(f'${place + 1}::"{name}"' for place in range(len(literals)))
    # The array has each value twice, two dimensions and nulls, and its indexes start at 0.
    array = f'array[array[{params}, null], array[null, {params}]]::"{name}"[]'
    text = session.value(f"select {array}", *literals)
    convert = session.converter(f'"{name}"[]')
    first, second = (
        json.loads(f"[{','.join(map(_raw, half))}]", parse_int=str)
        for half in msgspec.json.decode(convert(text), type=list[list[msgspec.Raw]])
    )
    assert first[-1] is None
    assert second[0] is None
    assert first[:-1] == second[1:] or name in ("float4", "float8")
    again = back(session, name, kind, "e")
    sql = f'select array(select case when json_typeof(e) = \'null\' and n = $2::int then null else ({again})::"{name}" end from json_array_elements($1::json -> 0) with ordinality as t(e, n))::"{name}"[]'
    assert session.value(sql, convert(text).decode(), str(len(literals) + 1)) == session.value(
        f'select array[{params}, null]::"{name}"[]', *literals
    )


def _raw(one: msgspec.Raw) -> str:
    return bytes(one).decode()
