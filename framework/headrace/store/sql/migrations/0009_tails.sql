-- A waiting key has one row in the tables that every lease call reads, however many messages it has.

-- The messages behind the first one of a waiting key. That one is parked or in flight, or the key is blocked. See line_up and promote in
-- parking.sql.
alter table headrace.blocked rename to tails;
alter table headrace.tails drop constraint blocked_pkey;
create unique index tails_by_key on headrace.tails (consumer_id, key_hash, seq);

-- The message that blocks a key is a dead letter with `blocks`.
create index dead_letters_blocking on headrace.dead_letters (consumer_id, key_hash, seq) where blocks;
delete from headrace.tails as t using headrace.dead_letters as d
    where d.consumer_id = t.consumer_id and d.key_hash = t.key_hash and d.seq = t.seq and d.blocks;

with behind as (
    delete from headrace.parked as p using headrace.consumers as c
    where c.id = p.consumer_id and c.ordered and p.attempts = 0 and p.crashes = 0 and p.due_at = '-infinity'
      and exists (
          select from headrace.parked as q where q.consumer_id = p.consumer_id and q.key_hash = p.key_hash and q.seq < p.seq)
    returning p.consumer_id, p.key_hash, p.seq
)
insert into headrace.tails (consumer_id, key_hash, seq) select * from behind on conflict do nothing;

alter table headrace.tails add primary key (consumer_id, seq);
alter table headrace.tails set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The lowest dead letter that blocks a key. Below it there may be very many dead rows.
create index dead_letters_that_block on headrace.dead_letters (consumer_id, blocks, seq);
alter table headrace.cursors add column blocked_floor bigint not null default 0;   -- no dead letter below it blocks a key

-- Parked messages that are due at once are found by seq, the others by time, each from a floor up.
create index parked_due on headrace.parked (consumer_id, due_at, seq);
alter table headrace.leases
    add column since timestamptz not null default '-infinity';      -- when it was leased: messages that are put back are not due before
alter table headrace.cursors
    add column ready_floor  bigint not null default 0,              -- no parked message below it is due at once
    add column due_floor    timestamptz not null default '-infinity',   -- no other parked message is due before that
    add column parked_room  int not null default 0;                 -- messages to look at before the parked ones are counted again
