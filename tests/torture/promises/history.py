"""Records that the database itself makes of each delivery and each outcome, in the same transaction.

Triggers on the tables of leases and of transactional acks write these records. So the records commit,
crash and fail over together with what they record, and the two always match. Each record has the id and
the snapshot of its transaction, which show exactly which other records had been committed before it. A
failover to a standby that lags takes the records back together with the history that they describe. The
remaining records are the history of the current server, without a gap.

The outcome of a message that left its lease shows in its place when the transaction commits. If it is
parked, in a tail or in another lease, it was released. Otherwise it is done. So the triggers do not
depend on the functions that move messages.
"""

from __future__ import annotations

from typing import Any

STREAM = "work"
RECEIPTS = "receipts"

KINDS = ("plain", "batch", "key", "tx", "txbatch", "http")
"""The consumers of the stream. Each has the keys that start with its name."""

TRANSACTIONAL = ("tx", "txbatch")

TABLES = """
create schema judge;

-- The consumers by their ids.
create view judge.consumers as
    select c.id, c.name as kind from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id where s.name = 'work';

-- Leases as they were given.
create table judge.leased (
    consumer int not null, lease_id bigint not null, owner uuid not null, seqs bigint[] not null, attempts int[],
    xid xid8 not null default pg_current_xact_id(), snapshot pg_snapshot not null default pg_current_snapshot(),
    at timestamptz not null default clock_timestamp());

-- Holds, see check_in.sql. They have leases' ids, keep keys, and have no messages.
create table judge.holds (lease_id bigint not null);

-- Messages that are done for good: acked, or dead letters. how: 'lease' or 'transaction'.
create table judge.done (
    consumer int not null, lease_id bigint not null, seqs bigint[] not null, how text not null,
    xid xid8 not null default pg_current_xact_id(), snapshot pg_snapshot not null default pg_current_snapshot(),
    at timestamptz not null default clock_timestamp());
create index on judge.done (consumer, at);

-- Messages that were given back. ended: their lease ended with that.
create table judge.given_back (
    consumer int not null, lease_id bigint not null, seqs bigint[] not null, ended boolean not null,
    xid xid8 not null default pg_current_xact_id(), at timestamptz not null default clock_timestamp());

-- What handlers did, each as it would write its effect. held: whether its lease held the message, which was locked for that.
create table judge.effects (
    consumer int not null, worker text not null, leases bigint[] not null, seqs bigint[] not null, uids text[] not null,
    held boolean[] not null,
    xid xid8 not null default pg_current_xact_id(), snapshot pg_snapshot not null default pg_current_snapshot(),
    at timestamptz not null default clock_timestamp());

-- What a handler that keeps the last value of each key has kept.
create table judge.last_values (consumer int, key text, uid text not null, primary key (consumer, key));

-- What services wrote in their transactions, one row for each message that they published there.
create table judge.service_rows (uid text not null, xid xid8 not null default pg_current_xact_id());
"""

_TRIGGERS = """
create function judge.note_lease() returns trigger language plpgsql as $$
begin
    if new.seqs[1] < 0 then
        insert into judge.holds values (new.lease_id);
    else
        insert into judge.leased values (
            new.consumer_id, new.lease_id, new.owner, array(select seq from headrace_internal.messages_of_lease(new)), new.attempts);
    end if;
    return null;
end $$;
create trigger judge_lease after insert on headrace_internal.leases for each row execute function judge.note_lease();

create function judge.note_removal() returns trigger language plpgsql as $$
declare
    v_removed  bigint[] := array(select seq from headrace_internal.messages_of_lease(old));
    v_back     bigint[];
begin
    if tg_op = 'UPDATE' then
        v_removed := array(select unnest(v_removed) except select seq from headrace_internal.messages_of_lease(new));
    end if;
    if v_removed = '{}' then
        return null;
    end if;
    v_back := array(
        select r.seq from unnest(v_removed) as r(seq)
        where exists (select from headrace_internal.parked as p where p.consumer_id = old.consumer_id and p.seq = r.seq)
           or exists (select from headrace_internal.tails as t where t.consumer_id = old.consumer_id and t.seq = r.seq)
           or exists (select from headrace_internal.leases as l where l.consumer_id = old.consumer_id and r.seq in (select m.seq from headrace_internal.messages_of_lease(l) as m)));
    if v_back <> '{}' then
        insert into judge.given_back values (old.consumer_id, old.lease_id, v_back, tg_op = 'DELETE');
        v_removed := array(select unnest(v_removed) except select unnest(v_back));
    end if;
    if v_removed <> '{}' then
        insert into judge.done values (old.consumer_id, old.lease_id, v_removed, 'lease');
    end if;
    return null;
end $$;
create constraint trigger judge_removal after delete or update of seqs on headrace_internal.leases
    deferrable initially deferred for each row when (coalesce(old.seqs[1], 1) > 0) execute function judge.note_removal();

create function judge.note_ack() returns trigger language plpgsql as $$
begin
    insert into judge.done values (new.consumer_id, new.lease_id, array[new.seq], 'transaction');
    return null;
end $$;
create constraint trigger judge_ack after insert on headrace_internal.acks
    deferrable initially deferred for each row execute function judge.note_ack();

-- Some commits of services take their time, so that a fault meets them.
create function judge.linger() returns trigger language plpgsql as $$
begin
    perform pg_sleep(random() * 0.2);
    return null;
end $$;
create constraint trigger judge_linger after insert on judge.service_rows
    deferrable initially deferred for each row when (new.uid ~ '[37]$') execute function judge.linger();

-- The effect of a handler. The leases are locked, so that none of them ends between the look and the commit.
create function judge.work(p_kind text, p_worker text, p_leases bigint[], p_seqs bigint[], p_keys text[], p_uids text[]) returns void
language plpgsql as $$
declare
    v_consumer  int := (select id from judge.consumers where kind = p_kind);
    v_held      boolean[];
begin
    perform from headrace_internal.leases where consumer_id = v_consumer and lease_id = any (p_leases) order by lease_id for key share;
    v_held := array(
        select exists (select from headrace_internal.leases as l where l.consumer_id = v_consumer and l.lease_id = a.lease and a.seq in (select m.seq from headrace_internal.messages_of_lease(l) as m))
        from unnest(p_leases, p_seqs) with ordinality as a(lease, seq, place) order by place);
    insert into judge.effects values (v_consumer, p_worker, p_leases, p_seqs, p_uids, v_held);
    insert into judge.last_values
        select distinct on (key) v_consumer, key, uid
        from unnest(p_keys, p_uids, v_held) with ordinality as w(key, uid, held, place) where held order by key, place desc
        on conflict (consumer, key) do update set uid = excluded.uid;
end $$;
"""


async def record(connection: Any) -> None:
    """Create the tables and start recording. The schema of Headrace must exist, and nothing may be leased."""
    await connection.execute(TABLES)
    await connection.execute(_TRIGGERS)
