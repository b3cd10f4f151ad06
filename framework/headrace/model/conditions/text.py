"""Parse and format conditions as text: `data.status = 'paid' and (data.total > 100 or not data.tags.0 in ('a', 'b'))`.

    any     = all { "or" all }
    all     = one { "and" one }
    one     = "not" one | "(" any ")" | test
    test    = field compare literal | field ["not"] "in" "(" literal { "," literal } ")"
            | field "is" ["not"] "null" | field ( "like" | "ilike" | "regex" ) string
    compare = "=" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    literal = string | number | "true" | "false"

Keywords may be in any case. A string is in single quotes, and a single quote inside it is doubled. Numbers
are written as in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn, cast

from headrace.model.conditions.paths import STEP, split
from headrace.model.conditions.tree import (
    MAX_DEPTH,
    MAX_MAGNITUDE,
    And,
    Compare,
    Condition,
    In,
    Match,
    Not,
    Null,
    Or,
    Refused,
    Scalar,
    printable,
)
from headrace.model.errors import InvalidFilter

_TOKEN = re.compile(
    rf"""(?P<string>'(?:[^']|'')*')
       | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
       | (?P<name>[^\W\d]\w*(?:{STEP.pattern})*)
       | (?P<sign><=|>=|!=|<>|[=<>(),])""",
    re.VERBOSE,
)
_SPACE = re.compile(r"\s*")
_LONGEST_NUMBER = 2 * MAX_MAGNITUDE  # a longer number is rejected without being parsed
_COMPARE = ("=", "!=", "<>", "<", "<=", ">", ">=")
_MATCH = ("like", "ilike", "regex")
_RESERVED = ("and", "or", "not", "in", "is", "null", "true", "false", *_MATCH)
_AFTER_FIELD = "write =, !=, <, <=, >, >=, in, not in, is null, is not null, like, ilike or regex after a field"
_MEANT = {
    "==": "write a single =",
    "~": "write `regex`, as in data.name regex '^a'",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not` before what is turned round, or != for not equal",
    '"': "a string is in single quotes, such as 'paid'; double ones are for odd steps of a field, data.\"odd key\"",
    ";": "a condition is a single one and ends by itself",
    "-": "a number is written as in JSON, such as -1.5",
    ".": "a field has a root and no empty step, such as data.total",
}


class _Token(NamedTuple):
    kind: str  # string, number, name or sign, and "" at the end
    text: str
    place: int

    @property
    def word(self) -> str:
        """The text as a keyword: in lower case if it is a name."""
        return self.text.lower() if self.kind in ("name", "sign") else ""


def parse_text(text: str) -> Condition:
    """Parse a condition. Raises `InvalidFilter`, which names the character at which it fails and what would be
    right.
    """
    parser = _Parser(text)
    condition = parser.any(0)
    parser.end()
    return condition


def describe(condition: Condition) -> str:
    """Format a condition as text. `parse` turns the text into the same condition again."""
    match condition:
        case And(conditions):
            return " and ".join(_grouped(part, Or) for part in conditions)
        case Or(conditions):
            return " or ".join(describe(part) for part in conditions)
        case Not(part):
            return f"not {_grouped(part, And, Or)}"
        case In(field, op, values):
            return f"{field} {op} ({', '.join(map(_literal, values))})"
        case Null(field, op):
            return f"{field} {op}"
        case Compare(field, op, value) | Match(field, op, value):
            return f"{field} {op} {_literal(value)}"
    raise TypeError(f"no condition: {condition!r}")


def _grouped(condition: Condition, *kinds: type[Condition]) -> str:
    return f"({describe(condition)})" if isinstance(condition, kinds) else describe(condition)


def _literal(value: Scalar) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Parser:
    """A recursive descent parser with one token of lookahead and no backtracking."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next = self._scan(0)

    def any(self, depth: int) -> Condition:
        return self._joined("or", Or, lambda: self._joined("and", And, lambda: self._one(depth)))

    def end(self) -> None:
        if self.next.text == ")":
            self._fail("this parenthesis was never opened, leave it out")
        if self.next.kind:
            self._fail("the condition could end before this, write `and` or `or` between two tests")

    def _joined(self, word: str, kind: type[And | Or], part: Callable[[], Condition]) -> Condition:
        place = self.next.place
        parts = [part()]
        while self.next.word == word:
            self._take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else self._made(place, lambda: kind(tuple(parts)))

    def _one(self, depth: int) -> Condition:
        # Redundant parentheses don't count in the tree, but they take stack here.
        if depth > 4 * MAX_DEPTH:
            self._fail(f"the condition is nested more than {MAX_DEPTH} deep, flatten it")
        if self.next.word == "not":
            place = self._take().place
            inner = self._one(depth + 1)
            return self._made(place, lambda: Not(inner))
        if self.next.text == "(":
            self._take()
            inner = self.any(depth + 1)
            self._expect(")", "close the parenthesis")
            return inner
        return self._test()

    def _test(self) -> Condition:
        field = self.next
        if field.kind in ("string", "number") or field.word in ("true", "false", "null"):
            self._fail("a test begins with its field, write data.total > 100 rather than 100 < data.total")
        if field.kind != "name" or field.word in _RESERVED:
            self._fail("a test begins with a field, such as data.total, headers.trace, key, seq or created_at")
        try:
            split(field.text)
        except InvalidFilter as error:
            self._fail(str(error), field)
        self._take()
        op = self.next
        if op.word in _COMPARE:
            return self._compare(field, op)
        if op.word == "is":
            return self._null(field)
        if op.word in ("in", "not"):
            return self._in(field, op)
        if op.word in _MATCH:
            return self._match(field, op)
        return self._fail(_instead(field.text, op))

    def _compare(self, field: _Token, op: _Token) -> Condition:
        self._take()
        literal = self.next
        if literal.word == "null":
            test = "is null" if op.text == "=" else "is not null"
            self._fail(f"nothing compares with null, write `{field.text} {test}`", op)
        sign: Any = "!=" if op.text == "<>" else op.text
        value = self._literal()
        return self._made(literal.place, lambda: Compare(field.text, sign, value))

    def _null(self, field: _Token) -> Condition:
        self._take()
        negated = self._skip("not")
        if self.next.word != "null":
            self._fail("only `null` or `not null` can stand after `is`, write = for anything else")
        self._take()
        return self._made(field.place, lambda: Null(field.text, "is not null" if negated else "is null"))

    def _in(self, field: _Token, op: _Token) -> Condition:
        negated = self._skip("not")
        if negated and self.next.word != "in":
            # It is unclear what "not like" would be for a message without the field.
            self._fail(
                f"only `in` can stand after this `not`, write `not {field.text} {self.next.text or 'like …'} …`, which"
                " takes messages without the field as well",
                op,
            )
        self._take()
        self._expect("(", "`in` needs its values in parentheses, such as ('a', 'b')")
        values = [self._literal()]
        while self._skip(","):
            values.append(self._literal())
        self._expect(")", "the list needs a comma or its closing parenthesis here")
        return self._made(op.place, lambda: In(field.text, "not in" if negated else "in", tuple(values)))

    def _match(self, field: _Token, op: _Token) -> Condition:
        self._take()
        literal = self.next
        if literal.kind != "string":
            self._fail(f"`{op.word}` needs its pattern as a string in single quotes")
        pattern: Any = self._literal()
        kind: Any = op.word
        return self._made(literal.place, lambda: Match(field.text, kind, pattern))

    def _literal(self) -> Scalar:
        token = self.next
        if token.kind == "string":
            value: Scalar = token.text[1:-1].replace("''", "'")
        elif token.kind == "number":
            value = Decimal(token.text) if len(token.text) <= _LONGEST_NUMBER else Decimal("inf")
        elif token.word in ("true", "false"):
            value = token.word == "true"
        elif token.word == "null":
            self._fail("null can't be in a list, write `or … is null`")
        elif token.kind == "name":
            self._fail(
                f"a field compares with a value and not with another field, write '{token.text:.40}' in single quotes if"
                " it is a string"
            )
        else:
            self._fail("a value belongs here, such as 'text', 100, true or false")
        self._take()
        return value

    def _skip(self, word: str) -> bool:
        if self.next.word != word:
            return False
        self._take()
        return True

    def _expect(self, sign: str, complaint: str) -> None:
        if self.next.text != sign:
            self._fail(complaint)
        self._take()

    def _take(self) -> _Token:
        token = self.next
        self.next = self._scan(token.place + len(token.text))
        return token

    def _scan(self, place: int) -> _Token:
        """The token at `place`, after any white space."""
        start = cast(re.Match[str], _SPACE.match(self.text, place)).end()
        if start == len(self.text):
            return _Token("", "", start)
        match = _TOKEN.match(self.text, start)
        token = _Token(match.lastgroup or "", match[0], start) if match else _Token("?", self.text[start], start)
        after = self.text[start + len(token.text) : start + len(token.text) + 1]
        if match is None:
            self._fail(_unreadable(self.text, start), token)
        if token.kind == "name" and after == ".":
            self._fail(_MEANT["."], _Token("", "", start + len(token.text)))
        if token.text == "=" and after == "=":
            self._fail(_MEANT["=="], token)
        return token

    def _made(self, place: int, make: Callable[[], Condition]) -> Condition:
        try:
            return make()
        except Refused as error:
            self._fail(error.reason, _Token("", "", place))

    def _fail(self, reason: str, token: _Token | None = None) -> NoReturn:
        place = (token or self.next).place
        before = ("…" if place > 24 else "") + self.text[max(0, place - 24) : place]
        after = self.text[place : place + 24] + ("…" if len(self.text) > place + 24 else "")
        at = "at its end" if place >= len(self.text) else f"at character {place + 1}"
        raise InvalidFilter(printable(f"The condition can't be read {at} ({before}▶{after}): {reason}."))


def _unreadable(text: str, place: int) -> str:
    if text[place] == "'":
        return "this string is never closed, end it with a single quote and double any inside it: 'it''s'"
    if text[place] in "0123456789":
        return "a number is written as in JSON, such as 0.5, -1 or 1e6"
    return _MEANT.get(
        text[place], "this character has no meaning here, a condition looks like data.total > 100 and key like 'a.%'"
    )


def _instead(field: str, op: _Token) -> str:
    """The correct form if a field is not followed by an operator, for error messages."""
    if op.word == "between":
        return f"write `{field} >= … and {field} <= …` instead of between"
    if op.word in ("", "and", "or", ")"):
        return f"a field alone is not a test, {_AFTER_FIELD}, or = true"
    return f"the operator is unknown, {_AFTER_FIELD}"
