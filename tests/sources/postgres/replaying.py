"""Replicas of tables that the server builds from the stream in SQL, row by row, so that the server compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The statement runs for each message in order. A value that an update leaves out, because it is stored
# out of line and unchanged, keeps its value in the replica: json_populate_record takes the values that
# the JSON lacks from its first argument.
_REPLAY = """
create table replica.done (seq bigint);
insert into replica.done values (0);
create function replica.replay() returns void language plpgsql as $$
declare
    m       record;
    v_was   jsonb;
    v_count int;
begin
    for m in select seq, data -> 'record' as record, data ->> 'action' as action, data -> 'changes' as changes,
                    data -> 'metadata' ->> 'table_name' as name
             from {stream} where seq > (select seq from replica.done) order by seq
    loop
        v_was := m.record::jsonb || case when json_typeof(m.changes) = 'object' then m.changes::jsonb else '{{}}' end;
        v_count := 1;
        {steps}
        if v_count <> 1 then
            raise exception 'message % (% of %) is of % rows', m.seq, m.action, m.name, v_count;
        end if;
        update replica.done set seq = m.seq;
    end loop;
end $$;
"""

_STEPS = """
        if m.name = '{table}' then
            declare
                v_row  replica.{table};
            begin
                case m.action
                when 'insert', 'read' then
                    if m.action = 'read' then  -- a table is read again after it was truncated
                        delete from replica.{table} as r using json_populate_record(null::replica.{table}, m.record) as w where {same};
                    end if;
                    insert into replica.{table} select * from json_populate_record(null::replica.{table}, m.record);
                when 'update' then
                    delete from replica.{table} as r using jsonb_populate_record(null::replica.{table}, v_was) as w
                        where {same} returning r.* into v_row;
                    get diagnostics v_count = row_count;
                    insert into replica.{table} select * from json_populate_record(v_row, m.record);
                when 'delete' then
                    delete from replica.{table} as r using json_populate_record(null::replica.{table}, m.record) as w where {same};
                    get diagnostics v_count = row_count;
                when 'truncate' then
                    truncate replica.{table};
                end case;
            end;
        end if;
"""


class Replaying:
    """A replica in the database of the captured tables.

    Args:
        tables: Tables of the schema public, each with its key columns.
    """

    def __init__(self, connection: Any, stream: str, tables: Mapping[str, Sequence[str]]) -> None:
        self._connection = connection
        self._stream = stream
        self._tables = tables

    async def begin(self) -> None:
        """Create an empty replica."""
        steps = "".join(
            _STEPS.format(table=table, same=" and ".join(f"r.{name} = w.{name}" for name in key))
            for table, key in self._tables.items()
        )
        await self._connection.execute("create schema replica")
        for table in self._tables:
            await self._connection.execute(f"create table replica.{table} (like public.{table} including indexes)")
        await self._connection.execute(_REPLAY.format(stream=f'headrace_streams."{self._stream}"', steps=steps))

    async def replay(self) -> None:
        """Apply the messages that have arrived since the last call."""
        await self._connection.execute("select replica.replay()")

    async def forget(self) -> None:
        """Start again after the tables were emptied. Earlier messages are ignored."""
        await self._connection.execute(
            f"""update replica.done set seq = (select coalesce(max(seq), 0) from headrace_streams."{self._stream}");
                truncate {", ".join(f"replica.{table}" for table in self._tables)}"""
        )

    async def latest(self) -> None:
        """Rebuild the replica for mode `rows` from the current contents of the stream."""
        for table in self._tables:
            await self._connection.execute(
                f"""truncate replica.{table};
                    insert into replica.{table} select r.* from headrace_streams."{self._stream}" as m,
                        json_populate_record(null::replica.{table}, m.data -> 'record') as r
                    where m.data -> 'metadata' ->> 'table_name' = '{table}' and json_typeof(m.data -> 'record') = 'object'"""
            )

    async def differences(self) -> list[str]:
        """Describe rows that only the table or only the replica has, up to a limit."""
        found = []
        for table in self._tables:
            for what, owned, theirs in (("missing", "public", "replica"), ("too many", "replica", "public")):
                rows = await self._connection.fetch(
                    f"select q::text as row from (select * from {owned}.{table} except all select * from {theirs}.{table}) as q limit 3"
                )
                found += [f"{what} in {table}: {row['row'][:500]}" for row in rows]
        return found
