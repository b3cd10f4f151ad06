-- The public views: what exists and how far it is, for psql, scripts and dashboards. Their columns keep their names from
-- version to version. No secret is in them.
--
-- A role with a grant sees the rows of its streams, and no message without `consume`. The two subqueries are read once.

create or replace view headrace.streams with (security_barrier) as
select s.name, i.id, i.messages, i.first_seq, i.last_seq, i.size, i.segments, i.consumers, i.scheduled, i.next_scheduled, i."full" as is_full,
       i.settings, i.created_at, i.updated_at
from headrace_internal.streams as s cross join lateral headrace_granted.view_streams(s.name) as i
where (select headrace_granted.is_direct('streams')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]);
comment on view headrace.streams is 'Streams: how many messages they hold, and their settings';

create or replace view headrace.consumers with (security_barrier) as
select s.name as stream, c.name, i.id, i.position, i.last_seq, i.lag, i.num_pending, i.num_pending_exact, i.num_ack_pending, i.parked, i.blocked,
       i.replaying, i.dead_letters, i.missed, i.oldest_unacked_at, i.paused_until,
       c.filters, c.filter_where, c.ordered, c.ack_wait, c.max_ack_pending, c.max_deliver, c.on_exhausted, c.rate_limit, c.created_at, c.updated_at
from headrace_internal.streams as s
join headrace_internal.consumers as c on c.stream_id = s.id
cross join lateral headrace_granted.view_consumers(s.name, c.name) as i
where (select headrace_granted.is_direct('consumers')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]);
comment on view headrace.consumers is 'Consumers: how far they are, and their settings';

create or replace view headrace.in_flight with (security_barrier) as
select s.name as stream, c.name as consumer, m.seq, m.attempt, l.owner, l.expires_at, l.consumer_id, l.lease_id
from headrace_internal.leases as l
join headrace_internal.consumers as c on c.id = l.consumer_id
join headrace_internal.streams as s on s.id = c.stream_id
cross join headrace_internal.messages_of_lease(l) as m
where (     -- an index lookup: a join compares each message with each ack
    select true from headrace_internal.acks as a
    where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and a.seq = m.seq limit 1) is null
  and ((select headrace_granted.is_direct('in_flight')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]));
comment on view headrace.in_flight is 'Messages that workers hold: consumer_id, lease_id and seq are the arguments of headrace.ack';

create or replace view headrace.parked with (security_barrier) as
select s.name as stream, c.name as consumer, p.seq, p.attempts, p.due_at, (r.failure).at as failed_at, (r.failure).error, (r.failure).error_type,
       (r.failure).process as failed_by
from headrace_internal.parked as p
join headrace_internal.consumers as c on c.id = p.consumer_id
join headrace_internal.streams as s on s.id = c.stream_id
-- An error may quote the message.
cross join lateral (
    select case when (select headrace_granted.is_direct('parked')) or s.id = any ((select headrace_granted.streams_of('consume'))::int[])
                then p.failure end as failure) as r
where (select headrace_granted.is_direct('parked')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[])
union all
select s.name, c.name, t.seq, 0, null, null, null, null, null
from headrace_internal.tails as t
join headrace_internal.consumers as c on c.id = t.consumer_id
join headrace_internal.streams as s on s.id = c.stream_id
where (select headrace_granted.is_direct('parked')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]);
comment on view headrace.parked is 'Messages that wait for a retry, or, without due_at, for an earlier message of their key';

create or replace view headrace.dead_letters with (security_barrier) as
select s.name as stream, c.name as consumer, d.seq, d.key, d.data, d.headers, d.attempts, d.reason, d.error, d.traceback, d.blocks, d.created_at, d.died_at, d.error_type
from headrace_internal.dead_letters as d
join headrace_internal.consumers as c on c.id = d.consumer_id
join headrace_internal.streams as s on s.id = c.stream_id
where (select headrace_granted.is_direct('dead_letters')) or s.id = any ((select headrace_granted.streams_of('consume'))::int[]);
comment on view headrace.dead_letters is 'Dead letters, with the error. Those that block their key keep it waiting';

create or replace view headrace.sources with (security_barrier) as
select o.name, o.uid as id, o.kind, s.name as stream, i.capture ->> 'state' as state, i.capture ->> 'reason' as reason, o.created_at, o.updated_at
from headrace_internal.sources as o
join headrace_internal.streams as s on s.id = o.stream_id
cross join lateral headrace_granted.view_capture(o.id) as i(capture)
where (select headrace_granted.is_direct('sources')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]);
comment on view headrace.sources is 'Sources: which stream they fill, and the state of those that capture tables';

create or replace view headrace.schedules with (security_barrier) as
select c.name, s.name as stream, c.settings, case when c.paused_at is not null then 'paused' when c.seen_at < clock_timestamp() - interval '90 seconds' then 'idle' else 'running' end as state,
       c.next_at, c.last_due_at, c.last_run_at, c.messages, c.paused_at, c.seen_at, c.created_at, c.updated_at
from headrace_internal.schedules as c
join headrace_internal.streams as s on s.id = c.stream_id
where (select headrace_granted.is_direct('schedules')) or s.id = any ((select headrace_granted.streams_of('observe'))::int[]);
comment on view headrace.schedules is 'Schedules of periodic messages: when they are due, and whether a process runs them';

create or replace view headrace.workers as
select w.id, w.seen_at, w.gone, w.facts from headrace_granted.view_workers() as w;
comment on view headrace.workers is 'Processes that run an app: their last heartbeat, and their state as JSON';

comment on function headrace.publish is 'Publish a message in this transaction, and return its seq';
comment on function headrace.publish_many is 'Publish messages in this transaction, and return how many';
comment on function headrace.publish_unique is 'Publish a message in this transaction unless one with its unique key is pending, and return the seq of that one or of the new one';
comment on function headrace.publish_unique_many is 'Publish messages in this transaction unless messages with their unique keys are pending, and return how many';
comment on function headrace.publish_with_options is 'Publish messages in this transaction, with options as JSON: an object for all messages, or an array with one for each';
comment on function headrace.ack is 'Ack messages in this transaction. It raises if their lease has ended';
comment on function headrace.create_stream is 'Create a stream unless it exists';
comment on function headrace.needs_grant is 'Whether the caller has its rights by a grant alone. It raises for a role without any';
comment on function headrace.sequences_behind is 'Sequences that would give out numbers a second time, as after a restore of the data alone';
comment on function headrace.mend_sequence is 'Mend the sequence of a stream whose cache, cycle or increment was changed';
comment on function headrace.mend_sequences is 'Move all sequences that are behind above the numbers in use';
