"""Judges. Each promise has a query for its breaches, over the database's records (`history`) and the processes'
records (`observed`).

Why this is sound:

- The records commit with what they record, so there is exactly one for each durable outcome, whatever
crashes.
- "Before" never depends on clocks. Of two records, one was committed before the other was made if its
transaction is visible in the other's snapshot. So "nothing of a key is settled before its predecessor"
is judged at each settle, in the snapshot of that settle. A breach is found even if no crash happens at
the moment that would make it do damage.
- The order of a key is the order of its seqs. Each key has a single publisher, which publishes the next
message when the last one was confirmed, so no message of a key commits late.
- A failover to a standby that lags takes history back, and seqs are used again. The database's own
records are taken back with it, so they stay consistent. Messages that a process saw may be missing from them only if
its answer can be from the old primary: the request was sent before the old primary was gone,
and answered after the last commit that the standby had. Both are times of one machine, and a commit
precedes its answer. So nothing else is excused, and nothing that was taken back is counted as a breach.
- A handler that is not transactional may have had its effect in the part of history that was taken
back, and its ack may reach the new primary. Its effect is lost, as everything that it committed there,
but the handler has run. So such an effect counts as done in the queries for what a handler has seen.
The effect of a transactional handler does not, because its ack must have been lost with the effect.
- The calls of a frozen process when it wakes are judged by the lease, which its handler locks. Without the
lease the effect does not count, except in a transaction, which must not commit then.
- Two healthy processes are never at work on one key, whatever became of their leases. All processes go by the clock of
one machine. A run of a process that was frozen or cut off for as long as its lease takes longer than any other.

Each query returns one row for each breach, with the details to investigate it.
"""

from __future__ import annotations

from typing import Any

from tests.torture.promises.history import RECEIPTS, STREAM, TRANSACTIONAL

# The answers `s` that can be from a primary that is gone.
_EXCUSED = "exists (select from judge.failovers as f where s.asked <= f.stopped_at and s.answered >= f.kept_until)"

# A look-up is answered by the current server. So the old primary answered it only before that was gone.
_EXCUSED_LOOK_UP = """exists (
    select from judge.failovers as f
    where s.answered >= f.kept_until and case when s.looked_up then s.answered else s.asked end <= f.stopped_at)"""

_TRANSACTIONAL = ", ".join(f"'{kind}'" for kind in TRANSACTIONAL)

HEALTHY = 0.5
"""Seconds. A run that took longer may be that of a process that was frozen. Leases last for 1 second at least."""

MOST = 1000
"""Maximum number of listed breaches of a promise."""

PREPARE = f"""
create temp table messages as
    select m.seq, m.key, c.id as consumer, c.kind, m.data->>'uid' as uid, (m.data->>'n')::int as n,
           lag(m.seq) over (partition by m.key order by m.seq) as prior
    from headrace_streams.{STREAM} as m join judge.consumers as c on c.kind = split_part(m.key, '.', 1);
create unique index on messages (seq);
create index on messages (uid);

-- Each outcome once for its lease: what a transaction acked leaves its lease later, too.
create temp table outcomes as
    select distinct on (consumer, seq, lease_id) consumer, seq, lease_id, how, xid, snapshot, at
    from judge.done cross join unnest(seqs) as seq
    order by consumer, seq, lease_id, xid;
create index on outcomes (consumer, seq);
create index on outcomes (lease_id);

create temp table effects as
    select e.consumer, w.seq, w.uid, w.lease_id, w.held, w.place, e.worker, e.xid, e.snapshot
    from judge.effects as e cross join unnest(e.leases, e.seqs, e.uids, e.held) with ordinality as w(lease_id, seq, uid, held, place);
create index on effects (consumer, seq);

-- Effects that a handler saw committed, and that a failover took back, perhaps with the lease they were under.
create temp table taken_back as
    select distinct c.id as consumer, s.seq, s.uid from judge.saw_worked as s join judge.consumers as c using (kind)
    where {_EXCUSED};
create index on taken_back (consumer, seq);

create temp table leased as
    select l.consumer, l.lease_id, l.owner, m.seq, coalesce(m.attempt, 1) as attempt, l.xid, l.snapshot
    from judge.leased as l cross join unnest(l.seqs, l.attempts) as m(seq, attempt);
create index on leased (consumer, seq);
create index on leased (lease_id);

-- Outcomes of leases that the store accepted. It also accepts those of holds, which have no messages.
create temp table accepted as
    select * from judge.saw_settled as s where not exists (select from judge.holds as h where h.lease_id = s.lease_id);

create index on judge.given_back (lease_id);
create index on judge.saw_run (kind, key, began);
create index on judge.saw_received (seq, attempt);
analyze;
"""

JUDGES = {
    "no message is lost: all that are in the stream are settled": """
        select seq, key from messages as m
        where not exists (select from outcomes as o where o.consumer = m.consumer and o.seq = m.seq)""",
    "no message is settled unseen: its handler has worked on it, on its own contents, before it was settled": """
        select m.seq, m.key, o.lease_id, o.at from messages as m join outcomes as o using (consumer, seq)
        where m.kind <> 'http' and not exists (
            select from effects as e where e.consumer = m.consumer and e.seq = m.seq and e.uid = m.uid
                                       and (e.xid = o.xid or pg_visible_in_snapshot(e.xid, o.snapshot)))
            and not exists (select from taken_back as t where (t.consumer, t.seq, t.uid) = (m.consumer, m.seq, m.uid))""",
    "no message is settled unseen over HTTP: its contents came to a client in the attempt that settled it": """
        select m.seq, m.key, o.lease_id, o.at from messages as m join outcomes as o using (consumer, seq)
        where m.kind = 'http' and not exists (
            select from leased as l join judge.saw_received as r on r.seq = l.seq and r.attempt = l.attempt and r.uid = m.uid
            where l.consumer = m.consumer and l.seq = m.seq and l.lease_id = o.lease_id)""",
    "nothing of a key is settled before what precedes it": """
        select m.seq, m.prior, m.key, o.lease_id, o.at from messages as m join outcomes as o using (consumer, seq)
        where m.prior is not null and not exists (
            select from outcomes as p
            where p.consumer = m.consumer and p.seq = m.prior and (p.xid = o.xid or pg_visible_in_snapshot(p.xid, o.snapshot)))""",
    "nothing of a key is worked on before what precedes it": """
        select m.seq, m.prior, m.key, e.worker from messages as m join effects as e using (consumer, seq)
        where m.prior is not null and e.held and not exists (
            select from effects as p
            where p.consumer = m.consumer and p.seq = m.prior and p.held
              and (p.xid = e.xid and p.place < e.place or pg_visible_in_snapshot(p.xid, e.snapshot)))
            and not exists (
                select from taken_back as t join messages as p using (consumer, seq, uid)
                where t.consumer = m.consumer and t.seq = m.prior)""",
    "two healthy processes are never at work on one key": f"""
        select a.key, a.process, b.process as other, a.began, a.ended, b.began as other_began, b.ended as other_ended
        from judge.saw_run as a join judge.saw_run as b using (kind, key)
        where a.process < b.process and a.began < b.ended and b.began < a.ended
          and a.ended - a.began < {HEALTHY} and b.ended - b.began < {HEALTHY}""",
    "nothing of a key is given to a client before what precedes it is settled": """
        select m.seq, m.prior, m.key, l.lease_id from messages as m join leased as l using (consumer, seq)
        where m.kind = 'http' and m.prior is not null and not exists (
            select from outcomes as p
            where p.consumer = m.consumer and p.seq = m.prior and pg_visible_in_snapshot(p.xid, l.snapshot))""",
    "what is settled never comes again": """
        select l.seq, l.consumer, l.lease_id, o.lease_id as settled_with, o.at from leased as l join outcomes as o using (consumer, seq)
        where pg_visible_in_snapshot(o.xid, l.snapshot)""",
    "what is settled is settled once": """
        select consumer, seq, count(*) from outcomes group by 1, 2 having count(*) > 1""",
    "a handler that keeps the last value of a key ends with the last": """
        select m.key, m.uid, v.uid as kept from messages as m left join judge.last_values as v using (consumer, key)
        where m.kind <> 'http' and not exists (select from messages as l where l.prior = m.seq) and v.uid is distinct from m.uid
          and not exists (select from taken_back as t where (t.consumer, t.seq, t.uid) = (m.consumer, m.seq, m.uid))""",
    "what is worked on under a lease is what the stream has": """
        select e.seq, e.uid, m.uid as is, e.worker, e.lease_id from effects as e left join messages as m using (consumer, seq)
        where e.held and e.uid is distinct from m.uid""",
    "what comes over HTTP is what the stream has": f"""
        select s.seq, s.uid, m.uid as is, s.asked from judge.saw_received as s left join messages as m using (seq)
        where s.uid is distinct from m.uid and not {_EXCUSED}""",
    "no stale ack is accepted: a single outcome that was accepted is that of its lease": f"""
        select s.lease_id, s.seq, s.kind, s.answered from accepted as s
        where s.seq is not null and not {_EXCUSED} and not exists (
            select from outcomes as o where o.lease_id = s.lease_id and o.seq = s.seq and s.kind in ('ack', 'reject', 'invalid'))
        and not exists (
            select from judge.given_back as b
            where b.lease_id = s.lease_id and s.seq = any (b.seqs) and s.kind in ('retry', 'release'))""",
    "no stale ack is accepted: of a whole lease that was accepted nothing was given back": f"""
        select s.lease_id, s.answered from accepted as s
        where s.seq is null and not {_EXCUSED} and (
            exists (select from judge.given_back as b where b.lease_id = s.lease_id and b.ended)
            or not exists (select from outcomes as o where o.lease_id = s.lease_id))""",
    "no stale ack is accepted over HTTP: one that was confirmed is that of its attempt": f"""
        select s.seq, s.attempt, s.uid, s.answered from judge.saw_acked as s
        where not {_EXCUSED} and not exists (
            select from messages as m join outcomes as o using (consumer, seq) join leased as l using (consumer, seq, lease_id)
            where m.seq = s.seq and m.uid = s.uid and l.attempt = s.attempt)""",
    "the effects of a transactional handler are there once": f"""
        select m.seq, m.key, (select count(*) from effects as e where e.consumer = m.consumer and e.seq = m.seq) as count
        from messages as m
        where m.kind in ({_TRANSACTIONAL}) and (select count(*) from effects as e where e.consumer = m.consumer and e.seq = m.seq) <> 1""",
    "the effects of a transactional handler are committed with its ack, and under its lease": f"""
        select m.seq, m.key, e.xid, o.xid as settled_by, e.held from messages as m
        join effects as e using (consumer, seq) join outcomes as o using (consumer, seq)
        where m.kind in ({_TRANSACTIONAL}) and (e.xid <> o.xid or not e.held)""",
    "what a transactional handler publishes is there once": f"""
        select m.seq, m.uid, count(r.seq) from messages as m
        left join headrace_streams.{RECEIPTS} as r on r.data->>'uid' = m.uid
        where m.kind in ({_TRANSACTIONAL}) group by 1, 2 having count(r.seq) <> 1""",
    "what a publish has promised is in the stream": f"""
        select s.uid, s.answered from judge.saw_published as s
        where not {_EXCUSED} and not exists (select from messages as m where m.uid = s.uid)""",
    "what is published is in the stream once, in its order": """
        select m.seq, m.uid, p.uid as prior from messages as m join messages as p on p.seq = m.prior where p.n >= m.n""",
    "what a service wrote and what it published are committed together, once": """
        select coalesce(r.uid, m.uid) as uid, r.count as rows, m.count as messages from
            (select uid, count(*) from judge.service_rows group by 1) as r full join
            (select uid, count(*) from messages where key like '%.service-%' group by 1) as m using (uid)
        where r.count is distinct from 1 or m.count is distinct from 1""",
    "what app.transaction() said was committed is there": f"""
        select s.uid, s.answered, s.looked_up from judge.saw_committed as s
        where not {_EXCUSED_LOOK_UP} and not exists (select from judge.service_rows as r where r.uid = s.uid)""",
}


async def judge(connection: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the breaches of each promise, with an empty list for a kept promise. The database of
    `connection` must be at rest.
    """
    await connection.execute(PREPARE, timeout=1200)
    return {
        promise: [dict(row) for row in await connection.fetch(f"{query} limit {MOST}", timeout=1200)]
        for promise, query in JUDGES.items()
    }
