-- The owners that may be at work, see check_in.sql. Logged, since it is needed after a crash. There is no foreign key,
-- because a check-in would lock the consumer's row.

create table headrace_internal.owners (
    consumer_id int not null,
    owner       uuid not null,
    history     uuid not null,      -- in which it has checked in
    unknown     boolean not null default false,     -- it stands for those that a rewind has removed. `owner` is the history
                                                    -- that began then
    since       timestamptz not null default clock_timestamp(),
    primary key (consumer_id, owner)
);
