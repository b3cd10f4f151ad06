"""Tables in the workers' database that record the effects of handlers and every violation of a promise.

The effects protect themselves against frozen workers that wake up. A worker that writes an effect
states which effect must precede it.
"""

from __future__ import annotations

import asyncpg

from headrace import store
from tests.torture.fleet import Line

_LEDGER = """
create table applied (seq bigint primary key, what text not null);
create table duplicates (seq bigint not null);
create table violations (seq bigint not null, what text not null, at timestamptz not null default clock_timestamp());
-- The last message that was applied of each lane, a path or a key.
create table lanes (name text primary key, seq bigint not null, blob text);

-- One transaction: apply the message if it is above the last one of its lane and finds what it expects.
create function apply_step(p_seq bigint, p_lane text, p_old text, p_new text, p_what text) returns text language plpgsql as $$
declare
    v_lane  lanes;
begin
    insert into lanes values (p_lane, 0, null) on conflict do nothing;
    update lanes set blob = p_new, seq = p_seq where name = p_lane and seq < p_seq and blob is not distinct from p_old;
    if found then
        insert into applied values (p_seq, p_what);
        return 'applied';
    end if;
    select * into v_lane from lanes where name = p_lane;
    if exists (select from applied where seq = p_seq) then
        insert into duplicates values (p_seq);
        return 'duplicate';
    end if;
    insert into violations values (p_seq, format('%s: expected %s, found %s of %s', p_lane, p_old, v_lane.blob, v_lane.seq));
    return 'violation';
end $$;

create function apply_change(p_seq bigint, p_path text, p_old text, p_new text) returns text language sql as
    $$ select apply_step(p_seq, p_path, p_old, p_new, p_path) $$;

create function take_receipt(p_seq bigint, p_key text, p_id text) returns text language sql as
    $$ select apply_step(p_seq, p_key, null, null, p_id) $$;

-- Which leases ended by expiry, and what they still held then.
create table expired (lease_id bigint primary key, seqs bigint[] not null);
create function note_expiry() returns trigger language plpgsql as $$
declare
    v_context  text;
begin
    get diagnostics v_context = pg_context;
    if v_context ~ 'function (headrace_internal\\.)?expire_leases\\(' then
        insert into public.expired values (old.lease_id, array(select seq from headrace_internal.messages_of_lease(old)));
    end if;
    return null;
end $$;
create trigger note_expiry after delete on headrace_internal.leases for each row execute function note_expiry();
"""


async def open_ledger(connection: asyncpg.Connection) -> None:
    """Create the tables. The schema of Headrace must exist."""
    await connection.execute(_LEDGER)


async def counts(connection: asyncpg.Connection) -> dict[str, int]:
    """Return how many effects were applied, came again and were violations, and how many leases expired."""
    row = await connection.fetchrow(
        """select (select count(*) from applied) as applied, (select count(*) from duplicates) as duplicates,
                  (select count(*) from violations) as violations, (select count(*) from expired) as expired"""
    )
    return dict(row)


async def check_settles(connection: asyncpg.Connection, lines: list[Line]) -> tuple[int, int]:
    """Check that no ack of an expired lease was accepted. Returns how many outcomes were accepted, and
    how many refused.
    """
    expired = {row["lease_id"]: set(row["seqs"]) for row in await connection.fetch("select * from expired")}
    accepted = refused = 0
    for line in lines:
        if "lost" not in line:
            continue
        lost = {(lease, seq) for lease, seq in line["lost"]}
        claimed = [(lease, seq) for lease, seq in line["single"]] + [(lease, None) for lease in line["whole"]]
        refused += len(lost)
        for lease, seq in claimed:
            if (lease, seq) in lost:
                continue
            accepted += 1
            assert seq not in expired.get(lease, ()), (
                f"an outcome of {seq} was accepted after its lease {lease} expired"
            )
            assert seq is not None or lease not in expired, f"a whole lease, {lease}, was accepted after it expired"
    return accepted, refused


async def nothing_is_left(database: store.Database, stream: str) -> None:
    """Check that the consumer `work` of the stream has nothing to do and nothing in flight."""
    info = await store.consumer(database, stream, "work")
    assert (info.lag, info.in_flight, info.owners) == (0, 0, 0)
    assert (info.parked, info.blocked, info.dead_letters) == (0, 0, 0)
