"""Conditions on messages. They select the messages that a consumer reads, a replay delivers or a command shows.

    data.status = 'paid' and data.total > 100                               as text
    {"and": [{"field": "data.status", "op": "=", "value": "paid"},          as JSON
             {"field": "data.total", "op": ">", "value": 100}]}
    (field("status") == "paid") & (field("total") > 100)                    in Python

All three become the same small tree (`tree`). The database receives the tree as JSON and generates SQL from
it, in which Postgres quotes each literal (`store/sql/functions/messages/conditions.sql`). No unquoted text of a user
reaches SQL. `judge` evaluates the same conditions in Python.

**Fields** are `data` and `headers` with a path into them, and the message's own `key`, `seq` and
`created_at`. A step of a path is a name (letters, digits, `_`, `-`, `$`, `@`) or any text in double quotes:
`data."odd key".c`. In an array, a step that is a whole number is an index. It counts from 0, or from the
end if it is negative: `data.items.0.sku`, `data.items.-1`.

**Every test is true or false**, also if a field is missing or has another type. Nothing is converted:

- A field that is missing or null satisfies only `is null`.
- Numbers compare with numbers (exactly, by value: 1 = 1.0), strings with strings (character by character,
  by code point), and `true` and `false` with themselves. If the field has another type than the literal,
  `=`, `<`, `like` and the other operators of this kind are false.
- `!=` and `not in` are true for every value that is present, not null and not equal, also for a value of
  another type. `not data.x = 1` is also true for messages without the field.
- If an object on the path has the same name twice, the last occurrence that has the whole path counts.
- `like` and `ilike` have the wildcards `%` and `_`, and a backslash that escapes them. `regex` is a
  PostgreSQL regular expression, which may match anywhere. They use the locale "C" in every database, so
  `ilike` ignores the case of A to Z only. Sources evaluate a part of the regular expressions, see `patterns`.
- A time is text in ISO 8601, in UTC if it has no zone: `created_at >= '2030-01-31T12:00'`.
- JSON that Postgres can store but not parse (half of a surrogate pair in any string) has no fields.
"""

from headrace.model.conditions.builder import CREATED_AT, KEY, SEQ, Field, field
from headrace.model.conditions.judge import matches
from headrace.model.conditions.reading import parse
from headrace.model.conditions.text import describe
from headrace.model.conditions.tree import And, Compare, Condition, In, Match, Not, Null, Or, encode

__all__ = [
    "CREATED_AT",
    "KEY",
    "SEQ",
    "And",
    "Compare",
    "Condition",
    "Field",
    "In",
    "Match",
    "Not",
    "Null",
    "Or",
    "describe",
    "encode",
    "field",
    "matches",
    "parse",
]
