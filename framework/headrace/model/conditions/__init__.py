"""Conditions on what messages hold: which of them a consumer gets, a replay takes, or a person wants to see.

    data.status = 'paid' and data.total > 100                               as text
    {"and": [{"field": "data.status", "op": "=", "value": "paid"},          as JSON
             {"field": "data.total", "op": ">", "value": 100}]}
    (field("status") == "paid") & (field("total") > 100)                    in Python

All three become the same small tree (`tree`). The database gets it as JSON and makes SQL of it, each literal quoted by
Postgres (`store/sql/functions/conditions.sql`); no text of a user's ever reaches SQL. `judge` says the same in Python.

**Fields** are `data` and `headers` with a path into them, and the message's own `key`, `seq` and `created_at`. A step of a
path is a name (letters, digits, `_`, `-`, `$`, `@`) or anything in double quotes: `data."odd key".c`. A step that is a whole
number is an index where there is an array, from 0, or from its end if it is negative: `data.items.0.sku`, `data.items.-1`.

**Every test is true or false**, also where a field is missing or of another kind, and nothing is converted:

- A field that is missing, or null, satisfies only `is null`.
- A number compares with numbers (exactly, by value: 1 = 1.0), a string with strings (character by character, by code point),
  `true` and `false` with themselves. Of another kind than the literal, `=`, `<`, `like` and their like are false.
- `!=` and `not in` are true of every value that is there, not null, and not equal; also of one of another kind.
  `not data.x = 1` is true of messages without the field as well.
- Where a path leads into an object that has a name twice, the last of them that has the whole path counts.
- `like` and `ilike` have `%` and `_`, and a backslash that makes them ordinary; `regex` is a regular expression of
  PostgreSQL's that may match anywhere. They are of the locale "C" in every database: `ilike` takes no case from A to Z only.
- A time is text in ISO 8601, in UTC if it names no zone: `created_at >= '2030-01-31T12:00'`.
- JSON that Postgres can store but not take apart (half of a surrogate pair in any string) has no fields.
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
