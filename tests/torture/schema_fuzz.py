"""Random tables, random writes to them, and random changes of their schema, as SQL. A seed determines them.

Statements may fail by themselves, such as an insert for which there is no partition. A twin database without capture shows
which do.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.torture.schema_catalog import Catalog, Relation

PRELUDE = """
    create type mood as enum ('sad', 'ok', 'happy');
    create type place as (x int, y text);
    create type nested as (p place, m mood[]);
    create domain short as varchar(40) check (value <> 'never');
    create table marker (id int primary key);
"""

KINDS = ("plain", "two keys", "full", "without a key", "partitioned", "two deep", "inherited", "indexed")

SIMPLE = (
    "text", "integer", "bigint", "numeric(10,2)", "boolean", "date", "timestamp with time zone", "uuid", "bytea", "jsonb", "integer[]",
    "text[]", "mood", "mood[]", "place", "place[]", "nested", "short", "int4range",
)  # fmt: skip


class Fuzz:
    """Makes random statements.

    Args:
        seed: Determines the statements, together with the catalogs.
        version: The major version of PostgreSQL.
    """

    def __init__(self, seed: int, version: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        self._number = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    # --- tables

    def schema(self, count: int) -> tuple[tuple[str, ...], str]:
        """Return the names of the tables to capture, and the statements that create them and tables beside them."""
        names = tuple("abcdefgh"[:count])
        kinds = self.chance.sample(KINDS, count)
        return names, PRELUDE + "".join(self._table(name, kind) for name, kind in zip(names, kinds, strict=True))

    def _table(self, name: str, kind: str) -> str:
        columns = [f"c{self._next()} {self.chance.choice(SIMPLE)}" for _ in range(self.chance.randint(1, 4))]
        body = ", ".join(["id int not null", "part int not null default 1", *columns])
        deep, by_range = kind == "two deep", "partition by range (id)"
        if kind == "partitioned" or deep:
            key = "id, part" if deep else "id"
            by = "partition by list (part)" if deep else by_range
            made = f"create table {name} ({body}, primary key ({key})) {by};"
            roots = [name]
            if deep:
                roots = [f"{name}_l1", f"{name}_l2"]
                made += "".join(
                    f"create table {root} partition of {name} for values in ({root[-1]}) {by_range};" for root in roots
                )
            return made + "".join(
                f"create table {root}_p{n} partition of {root} for values from ({n * 100}) to ({n * 100 + 100});" for root in roots for n in range(3)
            )  # fmt: skip
        key = {"two keys": ", primary key (id, part)", "without a key": ""}.get(kind, ", primary key (id)")
        made = f"create table {name} ({body}{key});"
        if kind in ("full", "without a key"):
            made += f"alter table {name} replica identity full;"
        elif kind == "indexed":
            made += f"create unique index {name}_ids on {name} (part, id); alter table {name} replica identity using index {name}_ids;"
        elif kind == "inherited":
            made += f"create table {name}_child (extra int) inherits ({name});"
        return made

    # --- values

    def value(self, type_: str, catalog: Catalog) -> str:
        """Return an SQL expression of a type."""
        chance = self.chance
        if chance.random() < 0.1:
            return "null"
        if type_.endswith("[]"):
            return f"array[{', '.join(self.value(type_[:-2], catalog) for _ in range(chance.randint(0, 3)))}]::{type_}"
        match type_:
            case "place":
                return f"row({', '.join(self.value(one, catalog) for _, one in catalog.attributes)})::place"
            case "nested":
                return f"row({self.value('place', catalog)}, {self.value('mood[]', catalog)})::nested"
            case "mood":
                return f"{quoted(chance.choice(catalog.labels))}::mood"
            case "text":
                return chance.choice(
                    (
                        f"'t{chance.randrange(1000)}'",
                        "''",
                        f"repeat(md5('{chance.randrange(9)}'), {chance.choice((1, 300))})",
                    )
                )
            case "integer" | "bigint":
                return f"{chance.randrange(-1000, 1000)}::{type_}"
            case "boolean":
                return chance.choice(("true", "false"))
        number = chance.randrange(1, 1000)
        literals = {
            "numeric(10,2)": f"{number}.5", "date": f"2030-01-{number % 28 + 1:02}", "timestamp with time zone": f"2030-01-01 00:00:{number % 60:02}.25+00",
            "uuid": f"00000000-0000-0000-0000-{number:012}", "bytea": f"\\x{number:04x}", "jsonb": f'{{"a": [{number}, "b"], "c": "d"}}', "short": f"s{number}",
            "int4range": f"[{number},{number + 5})", "character varying(40)": f"v{number}",
        }  # fmt: skip
        return f"{quoted(literals[type_])}::{type_}" if type_ in literals else "null"

    def _row(self, table: Relation, catalog: Catalog, id_: str) -> tuple[str, str]:
        """Return the columns and the values of a row."""
        columns = [one for one in table.columns if not one.generated]
        values = {"id": id_, "part": str(self.chance.choice((1, 1, 2, 3)))}
        return (
            ", ".join(one.name for one in columns),
            ", ".join(values.get(one.name) or self.value(one.type, catalog) for one in columns),
        )

    # --- writes

    def write(self, catalog: Catalog) -> str:
        """Return a write to a captured table, or to a part of one."""
        chance = self.chance
        table = chance.choice(catalog.tables())
        if (parts := catalog.below(table.name)) and chance.random() < 0.3:
            table = chance.choice(parts)
        low = chance.randrange(320)
        where = f"id between {low} and {low + chance.choice((0, 3, 30))}"
        payload = table.payload()
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                columns, values = self._row(table, catalog, "g")
                many = chance.choice((1, 1, 5, 40))
                conflict = " on conflict do nothing" if table.key and chance.random() < 0.9 else ""
                return f"insert into {table.name} ({columns}) select {values} from generate_series({low}, {low + many - 1}) as g{conflict}"
            case 4 | 5 | 6 if payload:
                changed = chance.sample(payload, chance.randint(1, len(payload)))
                return f"update {table.name} set {', '.join(f'{one.name} = {self.value(one.type, catalog)}' for one in changed)} where {where}"
            case 7:
                return f"update {table.name} set id = id + {chance.choice((1, 7, 100, -100))} where id = {low}"
            case 8 if chance.random() < 0.1:
                return f"truncate {table.name}"
            case _:
                return f"delete from {table.name} where {where}"

    def transaction(self, catalog: Catalog) -> str:
        """Return one or several writes that are committed together, or rolled back."""
        count = self.chance.choice((1, 1, 1, 2, 6))
        writes = [self.write(catalog) for _ in range(count)]
        if count == 1:
            return writes[0]
        if self.chance.random() < 0.2:
            writes.insert(1, f"savepoint s; {self.write(catalog)}; rollback to s")
        return f"begin; {'; '.join(writes)}; {'rollback' if self.chance.random() < 0.1 else 'commit'}"

    # --- schema changes

    def change(self, catalog: Catalog) -> str | None:
        """Return a schema change, or None if the one that was drawn can't be now."""
        tables = catalog.tables()
        if not tables:  # the last one was moved away
            return None
        table, name = self.chance.choice(tables), self.chance.choice(CHANGES)
        change: Callable[[Relation, Catalog], str | None] = getattr(self, f"_{name}")
        return change(table, catalog)

    def _add_column(self, table: Relation, catalog: Catalog) -> str | None:
        type_ = self.chance.choice(SIMPLE)
        default = "" if self.chance.random() < 0.5 else f" default {self.value(type_, catalog)}"
        return f"alter table {table.name} add c{self._next()} {type_}{default}" if len(table.columns) < 12 else None

    def _add_generated(self, table: Relation, catalog: Catalog) -> str | None:
        kind = "virtual" if self.version >= 18 and self.chance.random() < 0.5 else "stored"
        return f"alter table {table.name} add c{self._next()} int generated always as (id * {self.chance.randint(2, 9)}) {kind}"

    def _drop_column(self, table: Relation, catalog: Catalog) -> str | None:
        droppable = [one for one in table.columns if one.name not in ("id", "part")]
        return (
            f"alter table {table.name} drop {self.chance.choice(droppable).name} cascade"
            if len(droppable) > 1
            else None
        )

    def _rename_column(self, table: Relation, catalog: Catalog) -> str | None:
        payload = table.payload()
        return (
            f"alter table {table.name} rename {self.chance.choice(payload).name} to c{self._next()}"
            if payload
            else None
        )

    def _swap_columns(self, table: Relation, catalog: Catalog) -> str | None:
        if len(payload := table.payload()) < 2:
            return None
        one, other = (column.name for column in self.chance.sample(payload, 2))
        steps = ((one, "z"), (other, one), ("z", other))
        return "begin; " + "".join(f"alter table {table.name} rename {old} to {new}; " for old, new in steps) + "commit"

    def _alter_type(self, table: Relation, catalog: Catalog) -> str | None:
        payload = table.payload()
        if not payload:
            return None
        column, type_ = self.chance.choice(payload), self.chance.choice(SIMPLE)
        return f"alter table {table.name} alter {column.name} drop default, alter {column.name} type {type_} using {self.value(type_, catalog)}"

    def _replica_identity(self, table: Relation, catalog: Catalog) -> str | None:
        if (leaves := catalog.leaves(table.name)) and self.chance.random() < 0.7:
            table = self.chance.choice(leaves)
        kind = self.chance.choice(("full", "full", "default", "default", "nothing"))
        return f"alter table {table.name} replica identity {kind}"

    def _drop_key(self, table: Relation, catalog: Catalog) -> str | None:
        return (
            f"alter table {table.name} drop constraint {table.key_name}"
            if table.key and self.chance.random() < 0.4
            else None
        )

    def _change_key(self, table: Relation, catalog: Catalog) -> str | None:
        other = "id, part" if len(table.key) == 1 else "id"
        drop = f"drop constraint {table.key_name}, " if table.key else ""
        return f"alter table {table.name} {drop}add primary key ({other})"

    def _add_key(self, table: Relation, catalog: Catalog) -> str | None:
        return None if table.key else f"alter table {table.name} add primary key (id, part)"

    def _rename_table(self, table: Relation, catalog: Catalog) -> str | None:
        return (
            f"alter table {table.name} rename to {table.name}_away{self._next()}"
            if self.chance.random() < 0.3
            else None
        )

    def _rename_back(self, table: Relation, catalog: Catalog) -> str | None:
        return restored(catalog)

    def _swap_tables(self, table: Relation, catalog: Catalog) -> str | None:
        """A staging table takes the place of a plain one."""
        if table.kind != "r" or table.partition or table.parent or catalog.below(table.name):
            return None
        low, number = self.chance.randrange(200), self._next()
        staged = f"create table {table.name}_new (like {table.name} including all); insert into {table.name}_new select * from {table.name} where id < {low}; "
        if any(one.generated for one in table.columns):
            staged = f"create table {table.name}_new (like {table.name} including all); "
        away = (
            f"drop table {table.name}"
            if self.chance.random() < 0.5
            else f"alter table {table.name} rename to {table.name}_old{number}"
        )
        full = f"; alter table {table.name}_new replica identity full" if table.identity == "f" else ""
        return f"begin; {staged}{away}{full}; alter table {table.name}_new rename to {table.name}; commit"

    def _partition(self, table: Relation, catalog: Catalog) -> Relation | None:
        """A table that is partitioned by ranges of id, at any depth."""
        roots = [one for one in (table, *catalog.below(table.name)) if one.by and one.by.startswith("RANGE")]
        return self.chance.choice(roots) if roots else None

    def _create_partition(self, table: Relation, catalog: Catalog) -> str | None:
        if (root := self._partition(table, catalog)) is None:
            return None
        n = self.chance.randrange(5)
        return (
            f"create table {root.name}_p{n} partition of {root.name} for values from ({n * 100}) to ({n * 100 + 100})"
        )

    def _attach(self, table: Relation, catalog: Catalog) -> str | None:
        """A table that was a partition, or a new one with rows."""
        if (root := self._partition(table, catalog)) is None:
            return None
        n = self.chance.randrange(5)
        name, part = f"{root.name}_p{n}", 1 if table is root else int(root.name[-1])
        bounds = f"for values from ({n * 100}) to ({n * 100 + 100})"
        if name in catalog.relations:
            return (
                None
                if catalog.relations[name].partition
                else f"alter table {root.name} attach partition {name} {bounds}"
            )
        columns, values = self._row(root, catalog, "g")
        values = values.replace(", 2,", f", {part},").replace(", 3,", f", {part},")
        return (
            f"begin; create table {name} (like {root.name} including defaults including generated); insert into {name} ({columns}) select {values}"
            f" from generate_series({n * 100}, {n * 100 + 20}) as g; alter table {root.name} attach partition {name} {bounds}; commit"
        )

    def _detach(self, table: Relation, catalog: Catalog) -> str | None:
        parts = [one for one in catalog.below(table.name) if one.partition]
        if not parts:
            return None
        part = self.chance.choice(parts)
        return self.chance.choice((
            f"alter table {part.parent} detach partition {part.name}", f"alter table {part.parent} detach partition {part.name} concurrently",
            f"drop table {part.name}", f"truncate {part.name}",
        ))  # fmt: skip

    def _swap_partition(self, table: Relation, catalog: Catalog) -> str | None:
        """Detach a partition, change it, and attach it again."""
        leaves = [one for one in catalog.leaves(table.name) if one.partition and one.name[-2:-1] == "p"]
        if not leaves:
            return None
        leaf = self.chance.choice(leaves)
        n = int(leaf.name[-1])
        return (
            f"begin; alter table {leaf.parent} detach partition {leaf.name}; delete from {leaf.name} where id % 2 = 0;"
            f" alter table {leaf.parent} attach partition {leaf.name} for values from ({n * 100}) to ({n * 100 + 100}); commit"
        )

    def _inherit(self, table: Relation, catalog: Catalog) -> str | None:
        if table.kind != "r" or table.partition:
            return None
        children = catalog.below(table.name)
        if children:
            child = self.chance.choice(children).name
            return self.chance.choice((f"alter table {child} no inherit {table.name}", f"drop table {child}"))
        return f"create table {table.name}_child{self._next()} (extra{self._next()} int) inherits ({table.name})"

    def _rewrite(self, table: Relation, catalog: Catalog) -> str | None:
        part = self.chance.choice([table, *catalog.leaves(table.name)])
        return self.chance.choice(
            (f"vacuum full {part.name}", f"cluster {part.name} using {part.key_name}", f"reindex table {part.name}")
        )

    def _labels(self, table: Relation, catalog: Catalog) -> str | None:
        if self.chance.random() < 0.5:
            return f"alter type mood add value 'm{self._next()}'"
        return f"alter type mood rename value {quoted(self.chance.choice(catalog.labels))} to 'm{self._next()}'"

    def _attributes(self, table: Relation, catalog: Catalog) -> str | None:
        names = [name for name, _ in catalog.attributes]
        added = f"add attribute a{self._next()} {self.chance.choice(('int', 'text', 'boolean'))}"
        if len(names) < 2:
            return f"alter type place {added}"
        dropped = self.chance.choice(names)
        return "alter type place " + self.chance.choice(
            (
                added,
                f"drop attribute {dropped}",
                f"drop attribute {dropped}, {added}",
                f"rename attribute {dropped} to a{self._next()}",
            )
        )

    def _small(self, table: Relation, catalog: Catalog) -> str | None:
        """A change that has no effect on rows."""
        payload = table.payload()
        if not payload:
            return None
        column = self.chance.choice(payload)
        return f"alter table {table.name} alter {column.name} " + self.chance.choice(
            (
                f"set default {self.value(column.type, catalog)}",
                "drop default",
                "set not null",
                "drop not null",
                "set statistics 7",
            )
        )


CHANGES = tuple(name[1:] for name in vars(Fuzz) if name.startswith("_") and name[1:] in {
    "add_column", "add_generated", "drop_column", "rename_column", "swap_columns", "alter_type", "replica_identity", "drop_key", "change_key",
    "add_key", "rename_table", "rename_back", "swap_tables", "create_partition", "attach", "detach", "swap_partition", "inherit", "rewrite", "labels",
    "attributes", "small",
})  # fmt: skip


def restored(catalog: Catalog) -> str | None:
    """Return the statement that gives a renamed table its name again, or creates one of that name."""
    for name in catalog.captured:
        if name in catalog.relations:
            continue
        return (
            f"alter table {away} rename to {name}"
            if (away := renamed(catalog, name)) is not None
            else f"create table {name} (id int, part int default 1, c0 text, primary key (id))"
        )
    return None


def renamed(catalog: Catalog, name: str) -> str | None:
    """Return the name that a table has now if it was renamed."""
    return max((one for one in catalog.relations if one.startswith(f"{name}_away")), default=None)


def healed(catalog: Catalog) -> str | None:
    """Return statements after which each captured table can be captured, one kind after the other."""
    if (statement := restored(catalog)) is not None:
        return statement
    statements = []
    for table in catalog.tables():
        for one in (table, *catalog.below(table.name)):
            if one.kind == "r" and one.identity in "ni":
                statements.append(f"alter table {one.name} replica identity default")
            statements += [
                f"alter table {one.name} drop {column.name}"
                for column in one.columns
                if column.generated == "v" and not column.inherited
            ]
        if not table.key:  # such a table can't be read
            statements.append(f"truncate {table.name} cascade; alter table {table.name} add primary key (id, part)")
    return "; ".join(statements) or None


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
