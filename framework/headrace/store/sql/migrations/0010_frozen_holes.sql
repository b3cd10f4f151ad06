-- Holes that only long transactions can fill, stored apart from the cursor, which every lease call writes. See holes.sql.

create table headrace.frozen_holes (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
    holder       xid8 not null,             -- a transaction that can fill them: one row for each
    lowest       bigint not null,           -- the first seq of these holes ...
    highest      bigint not null,           -- ... and the last one
    count        int not null,              -- number of holes
    holders      xid8[] not null,           -- all transactions that can fill them
    holes        int8multirange,            -- in the row of the first holder; null in the others
    primary key (consumer_id, holder, lowest)
);
alter table headrace.frozen_holes alter column holes set storage external;
alter table headrace.frozen_holes set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast_tuple_target = 8160);

alter table headrace.cursors
    add column holders  xid8[],                         -- the holders of the holes in the cursor; null if unknown
    add column frozen   xid8[] not null default '{}';   -- the holders of its frozen holes
-- Some hundred holes fit into the row, so that they are neither compressed nor stored out of line at each lease call.
alter table headrace.cursors alter column holes set storage external;
alter table headrace.cursors set (toast_tuple_target = 8160);
