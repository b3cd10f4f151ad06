"""Cases of tables, partitions, writes and what is around a table."""

from __future__ import annotations

from tests.sources.postgres.ddl.running import PARTITIONED, TABLE, Case

_WRITES = (
    "update t set v = v || '!' where id = 2",
    "insert into t (id, v) values (6, 'new')",
    "delete from t where id = 3",
)

_STAGED = (
    TABLE
    + "; create table staging (id int primary key, v text); insert into staging select g, 's' || g from generate_series(4, 8) as g"
)

_REST = "; create table rest (id int primary key, v text); insert into rest values (201, 'r'), (202, 'r')"

_DEEP = """
    create table t (id int, part int, v text, primary key (id, part)) partition by list (part);
    create table t_1 partition of t for values in (1) partition by range (id);
    create table t_1_0 partition of t_1 for values from (0) to (100);
    create table t_1_1 partition of t_1 for values from (100) to (200);
    create table t_2 partition of t for values in (2);
    insert into t values (1, 1, 'a'), (101, 1, 'b'), (1, 2, 'c'), (2, 2, 'd');
"""

WRITES = {
    "`truncate`": Case(steps=("truncate t", "insert into t values (9, 'after')")),
    "`truncate` of several tables, `cascade`, `restart identity`": Case(
        before=TABLE + "; create table child (id int references t); insert into child values (1)",
        steps=("truncate t restart identity cascade", "insert into t values (9, 'after')"),
    ),
    "`copy … from`": Case(
        steps=("copy t from program 'printf \"11\\ta\\n12\\tb\\n\"'",
               "begin; truncate t; copy t from program 'printf \"13\\ta\\n\"' with (freeze); commit"),
    ),
    "`insert … on conflict`": Case(
        steps=("insert into t values (2, 'c'), (7, 'n') on conflict (id) do update set v = excluded.v || t.v",),
    ),
    "`merge`": Case(
        since=15,
        steps=("merge into t using (values (2, 'm'), (7, 'n')) as s (id, v) on s.id = t.id"
               " when matched then update set v = s.v when not matched then insert values (s.id, s.v)",),
    ),
    "writes of triggers, and of foreign keys with `cascade`": Case(
        before="""
            create table parent (id int primary key);
            create table t (id int primary key references parent on delete cascade on update cascade, v text);
            create function shout() returns trigger language plpgsql as 'begin new.v = upper(new.v); return new; end';
            create trigger shout before insert or update on t for each row execute function shout();
            insert into parent select generate_series(1, 5); insert into t select g, 'v' || g from generate_series(1, 5) as g;
        """,
        steps=("delete from parent where id = 2", "update parent set id = 14 where id = 4", "update t set v = 'loud' where id = 1"),
    ),
    "writes with `session_replication_role = replica`": Case(
        steps=("set session_replication_role = replica", *_WRITES, "reset session_replication_role"),
    ),
    "writes of a replication origin, as of a subscription": Case(
        steps=("select pg_replication_origin_create('elsewhere_' || current_database())",
               "select pg_replication_origin_session_setup('elsewhere_' || current_database())",
               *_WRITES,
               "select pg_replication_origin_session_reset()",
               "select pg_replication_origin_drop('elsewhere_' || current_database())"),
    ),
    "two-phase commit": Case(
        steps=("begin; insert into t values (7, 'two'); update t set v = 'phase' where id = 1; prepare transaction 'a_{database}'",
               "begin; insert into t values (8, 'never'); prepare transaction 'b_{database}'",
               "commit prepared 'a_{database}'", "rollback prepared 'b_{database}'"),
    ),
    "`rollback`, and `rollback to savepoint`, of a schema change": Case(
        steps=("begin; alter table t add n int default 7; update t set v = 'x'; rollback",
               "begin; insert into t values (7, 'kept'); savepoint s; alter table t alter v type int using 1; rollback to s; commit",
               *_WRITES),
    ),
    "`create table as`, `select into`": Case(
        steps=("create table t2 as select * from t", "select * into t3 from t", "update t2 set v = 'x'"),
    ),
}  # fmt: skip

TABLES = {
    "rename the table (its messages keep the old name)": Case(
        steps=("alter table t rename to renamed", "update renamed set v = 'x' where id = 2", "insert into renamed values (6, 'new')"),
        judged="renamed",
    ),
    "rename the table, with a view in its place (its messages keep the old name)": Case(
        steps=("begin; alter table t rename to renamed; create view t as select * from renamed; commit",
               "update t set v = 'x' where id = 2", "insert into t values (6, 'new')"),
        judged="renamed",
    ),
    "rename the table and back": Case(
        steps=("alter table t rename to renamed", "update renamed set v = 'x' where id = 2", "alter table renamed rename to t", *_WRITES),
    ),
    "set schema of the table (its messages keep the old one)": Case(
        steps=("create schema archive; alter table t set schema archive", "update archive.t set v = 'x' where id = 2"),
        judged="archive.t",
    ),
    "drop the table": Case(
        steps=("drop table t",),
        mended=("create table t (id int primary key, v text)", "insert into t values (1, 'again')"),
    ),
    "drop the table and create it again": Case(
        steps=("insert into t values (6, 'last')", "drop table t", "create table t (id int primary key, v text)", "insert into t values (1, 'again')"),
    ),
    "drop the table and create it again, with `create table as`": Case(
        steps=("begin; create table kept as select * from t where id > 2; drop table t; alter table kept rename to t; alter table t add primary key (id); commit",
               *_WRITES),
    ),
    "swap with a staging table: two renames": Case(
        before=_STAGED,
        steps=("begin; alter table t rename to old; alter table staging rename to t; commit", "insert into t values (16, 'new')", "update t set v = 'x' where id = 5", "delete from t where id = 8"),
    ),
    "swap with a staging table: drop and rename": Case(
        before=_STAGED,
        steps=("begin; drop table t; alter table staging rename to t; commit", "insert into t values (16, 'new')", "update t set v = 'x' where id = 5", "delete from t where id = 8"),
    ),
    "swap with a staging table and back": Case(
        before=_STAGED,
        steps=("begin; alter table t rename to old; alter table staging rename to t; commit",
               "update t set v = 'x' where id = 5",
               "begin; alter table t rename to staging; alter table old rename to t; commit", *_WRITES),
    ),
    "set unlogged": Case(steps=("refused: alter table t set unlogged", *_WRITES)),
    "set logged of an unlogged table": Case(
        before=TABLE.replace("create table", "create unlogged table"),
        steps=("update t set v = 'x' where id = 2",),
        mended=("alter table t set logged", *_WRITES),
        settings={"unready": True},
    ),
    "`vacuum full`": Case(steps=("vacuum full t",)),
    "`cluster`": Case(steps=("cluster t using t_pkey",)),
    "`repack`, `repack (concurrently)`": Case(since=19, steps=("repack t", "repack (concurrently) t")),
    "`reindex`, `analyze`, `vacuum freeze`": Case(steps=("reindex table t", "vacuum (freeze, analyze) t")),
    "set tablespace": Case(
        steps=("set allow_in_place_tablespaces = on", "create tablespace space_{database} location ''",
               "alter table t set tablespace space_{database}",
               "alter table t set tablespace pg_default", "drop tablespace space_{database}"),
    ),
    "change the owner of the table": Case(
        role=True, steps=("alter table t owner to current_user", "grant select on t to {role}", *_WRITES),
    ),
    "revoke `select` on the table": Case(
        role=True, steps=("alter table t owner to current_user", "grant select on t to {role}; revoke select on t from {role}", *_WRITES),
    ),
    "revoke `select` on the table, and alter a column's type": Case(
        role=True, steps=("alter table t owner to current_user", "grant select on t to {role}; revoke select on t from {role}",
               "alter table t alter v type int using id"),
    ),
    "switch row security on": Case(
        role=True,
        steps=("alter table t owner to current_user", "grant select on t to {role}",
               "create policy few on t using (id < 3)", "alter table t enable row level security", *_WRITES),
    ),
    "switch row security on, and alter a column's type": Case(
        role=True,
        steps=("alter table t owner to current_user", "grant select on t to {role}",
               "create policy few on t using (id < 3)", "alter table t enable row level security", "alter table t alter v type int using id * 2"),
        mended=("alter table t disable row level security", "insert into t values (7, 7)"),
    ),
    "writes to a table that inherits from it": Case(
        before=TABLE + "; create table child (extra int) inherits (t); insert into child values (50, 'c', 1)",
        steps=("insert into child values (51, 'c', 1)", "update child set extra = 2, v = 'd'", "delete from child where id = 50"),
        judged="only t",
    ),
    "create a table that inherits from it": Case(
        steps=("create table child (extra int) inherits (t)", "insert into child values (50, 'c', 1)",
               "update child set extra = 2, v = 'd'", "delete from child where id = 50"),
        judged="only t",
    ),
    "`inherit` and `no inherit` of an existing table": Case(
        before=TABLE + "; create table child (id int not null, v text); insert into child values (60, 'c')",
        steps=("alter table child inherit t", "update child set v = 'd'", "alter table child no inherit t", "update child set v = 'e'", *_WRITES),
        judged="only t",
    ),
}  # fmt: skip

PARTITIONS = {
    "writes to the root, to partitions, and across them": Case(
        before=PARTITIONED,
        steps=("insert into t_1 values (150, 'n')", "update t set id = id + 150 where id = 2", "delete from t_0 where id = 3", "update t_1 set v = 'x' where id = 101"),
    ),
    "`truncate` of the root": Case(before=PARTITIONED, steps=("truncate t", "insert into t values (9, 'after')")),
    "`truncate` of a partition": Case(before=PARTITIONED, steps=("truncate t_1", "insert into t values (101, 'after')")),
    "create a partition": Case(
        before=PARTITIONED, steps=("create table t_2 partition of t for values from (200) to (300)", "insert into t values (201, 'n')", "update t set v = 'x' where id = 201"),
    ),
    "attach a table with rows": Case(
        before=PARTITIONED + _REST, steps=("alter table t attach partition rest for values from (200) to (300)", "update t set v = 'x' where id = 201"),
    ),
    "attach a table with rows and other columns' order": Case(
        before=PARTITIONED + "; create table rest (gone int, v text, id int not null); alter table rest drop gone; insert into rest values ('r', 201), ('r', 202)",
        steps=("alter table t attach partition rest for values from (200) to (300)", "update t set v = 'x' where id = 201", "delete from t where id = 202"),
    ),
    "detach a partition": Case(
        before=PARTITIONED, steps=("alter table t detach partition t_1", "update t_1 set v = 'x'", "insert into t values (9, 'n')"),
    ),
    "detach a partition `concurrently`": Case(
        before=PARTITIONED, steps=("alter table t detach partition t_1 concurrently", "update t_1 set v = 'x'", "insert into t values (9, 'n')"),
    ),
    "drop a partition": Case(before=PARTITIONED, steps=("drop table t_1", "insert into t values (9, 'n')")),
    "detach a partition and attach another in its place": Case(
        before=PARTITIONED + "; create table rest (id int primary key, v text); insert into rest values (102, 'other'), (150, 'r')",
        steps=("begin; alter table t detach partition t_1; alter table t attach partition rest for values from (100) to (200); commit", "update t set v = v || 'x' where id > 100"),
    ),
    "detach a partition and attach it again": Case(
        before=PARTITIONED,
        steps=("alter table t detach partition t_1", "update t_1 set v = 'apart' where id = 101", "delete from t_1 where id = 102",
               "alter table t attach partition t_1 for values from (100) to (200)", "insert into t values (150, 'n')"),
    ),
    "move rows out of the default partition into a new one": Case(
        before=PARTITIONED + "; create table rest partition of t default; insert into t values (301, 'd'), (401, 'd')",
        steps=("begin; create table t_3 (id int primary key, v text); with moved as (delete from rest where id < 400 returning *) insert into t_3 select * from moved;"
               " alter table t attach partition t_3 for values from (300) to (400); commit", "update t set v = 'x' where id = 301"),
    ),
    "rename a partition, or move it to another schema": Case(
        before=PARTITIONED, steps=("alter table t_1 rename to p", "create schema archive; alter table p set schema archive", "update t set v = 'x' where id = 101"),
    ),
    "alter a column's type of all partitions": Case(
        before=PARTITIONED, steps=("alter table t alter v type int using id * 100", "update t set v = 0 where id = 101"),
    ),
    "`vacuum full` of a partition": Case(before=PARTITIONED, steps=("vacuum full t_1",)),
    "a partition gets `replica identity nothing`": Case(
        before=PARTITIONED,
        steps=("alter table t_1 replica identity nothing",),
        later=("update t set v = 'later' where id = 101", "delete from t where id = 102"),
        mended=("alter table t_1 replica identity default", "update t set v = 'mended' where id = 103"),
    ),
    "a partition gets `replica identity using index`, of another index than the primary key: deletes": Case(
        before=PARTITIONED,
        steps=("alter table t_1 alter v set not null", "create unique index t_1_v on t_1 (v)", "alter table t_1 replica identity using index t_1_v",
               "update t set v = 'x' where id = 101", "delete from t where id = 102"),
    ),
    "attach a sub-partitioned table with rows": Case(
        before=_DEEP + """; create table t_3 (id int, part int, v text, primary key (id, part)) partition by range (id);
            create table t_3_0 partition of t_3 for values from (0) to (100); insert into t_3 values (1, 3, 'x'), (2, 3, 'y')""",
        steps=("alter table t attach partition t_3 for values in (3)", "update t set v = 'z' where id = 2"),
    ),
    "detach, drop or truncate a sub-partition": Case(
        before=_DEEP,
        steps=("alter table t_1 detach partition t_1_1", "truncate t_2", "insert into t values (50, 1, 'n')"),
    ),
    "detach a sub-partitioned table": Case(before=_DEEP, steps=("alter table t detach partition t_1", "insert into t values (50, 2, 'n')")),
    "the table itself becomes a partition": Case(
        before=TABLE, steps=("create table root (id int not null, v text) partition by range (id)", "alter table root attach partition t for values from (0) to (100)", *_WRITES),
    ),
}  # fmt: skip

_GIVEN = "create publication given for table t, other with (publish_via_partition_root)"
_ATTACHED = (
    "insert into rest values (203, 'r')",
    "alter table t attach partition rest for values from (200) to (300)",
    "update t set v = 'x' where id = 201",
)
_OF_SCHEMA = "create publication given for tables in schema public with (publish_via_partition_root)"
_OF_ALL = "create publication given for all tables with (publish_via_partition_root)"

PUBLICATIONS = {
    "the source's publication loses the table": Case(
        steps=("do $$ declare p text; begin for p in select pubname from pg_publication loop execute format('alter publication %I drop table t', p); end loop; end $$",
               "update t set v = 'x' where id = 2", "delete from t where id = 3"),
    ),
    "the source's publication gets fewer actions": Case(
        steps=("do $$ declare p text; begin for p in select pubname from pg_publication loop execute format('alter publication %I set (publish = ''insert'')', p); end loop; end $$",
               "update t set v = 'x' where id = 2", "delete from t where id = 3"),
    ),
    "the source's publication gets a row filter": Case(
        since=15,
        steps=("do $$ declare p text; begin for p in select pubname from pg_publication loop execute format('alter publication %I set table t where (id > 3), other', p); end loop; end $$",
               "update t set v = 'x' where id = 2", "delete from t where id = 3"),
    ),
    "the source's publication is dropped": Case(
        steps=("do $$ declare p text; begin for p in select pubname from pg_publication loop execute format('drop publication %I', p); end loop; end $$",
               "update t set v = 'x' where id = 2"),
    ),
    "a given publication loses the table": Case(
        publication=_GIVEN,
        steps=("alter publication given drop table t", "update t set v = 'x' where id = 2", "delete from t where id = 3"),
        mended=("alter publication given add table t", "insert into t values (6, 'n')"),
    ),
    "a given publication gets fewer actions": Case(
        publication=_GIVEN,
        steps=("alter publication given set (publish = 'insert')", "update t set v = 'x' where id = 2", "delete from t where id = 3"),
        mended=("alter publication given set (publish = 'insert, update, delete, truncate')", "insert into t values (6, 'n')"),
    ),
    "a given publication gets a row filter": Case(
        since=15, publication=_GIVEN,
        steps=("alter publication given set table t where (id > 3), other", "update t set v = 'x' where id = 2", "delete from t where id = 3"),
        mended=("alter publication given set table t, other", "insert into t values (6, 'n')"),
    ),
    "a given publication gets a column list": Case(
        since=15, publication=_GIVEN,
        steps=("alter publication given set table t (id), other", "update t set v = 'x' where id = 2"),
        mended=("alter publication given set table t, other", "insert into t values (6, 'n')"),
    ),
    "attach a table with rows that was written before, with a given publication": Case(
        since=15, before=PARTITIONED + _REST, publication=_GIVEN, steps=_ATTACHED, later=("update t set v = 'later' where id = 202",),
    ),
    "attach or detach a partition that was written before, with a given publication of PostgreSQL 14": Case(
        until=14, before=PARTITIONED + _REST, publication=_GIVEN, steps=_ATTACHED, later=("update t set v = 'later' where id = 202",),
        mended=("alter publication given set (publish_via_partition_root = true)", "update t set v = 'mended' where id = 203"),
    ),
    "a given publication loses the table, and gets it back": Case(
        publication=_GIVEN,
        steps=("alter publication given drop table t", "update t set v = 'x' where id = 2", "delete from t where id = 3",
               "alter publication given add table t"),
    ),
    "a given publication of partitions loses one, and gets it back": Case(
        before=PARTITIONED,
        publication="create publication given for table t_0, t_1, other",
        steps=("alter publication given drop table t_1", "update t set v = 'x' where id = 101", "delete from t where id = 102",
               "alter publication given add table t_1"),
    ),
    "a given publication of a schema loses the table, which moves to another schema": Case(
        since=15, publication=_OF_SCHEMA,
        steps=("create schema archive; alter table t set schema archive", "update archive.t set v = 'x' where id = 2"),
        mended=("alter table archive.t set schema public", "insert into t values (6, 'n')"),
    ),
    "a given publication of a schema loses the table, and gets it back": Case(
        since=15, publication=_OF_SCHEMA,
        steps=("create schema archive; alter table t set schema archive", "update archive.t set v = 'x' where id = 2", "delete from archive.t where id = 3",
               "alter table archive.t set schema public"),
    ),
    "a given publication of all tables excepts the table": Case(
        since=19, publication=_OF_ALL,
        steps=("alter publication given set all tables except (table t)", "update t set v = 'x' where id = 2", "delete from t where id = 3"),
        mended=("alter publication given set all tables", "insert into t values (6, 'n')"),
    ),
    "a given publication of all tables excepts the table, and no longer": Case(
        since=19, publication=_OF_ALL,
        steps=("alter publication given set all tables except (table t)", "update t set v = 'x' where id = 2", "delete from t where id = 3",
               "alter publication given set all tables"),
    ),
}  # fmt: skip
