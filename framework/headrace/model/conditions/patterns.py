"""Compile patterns of conditions to Python's regular expressions, with the meaning that they have in Postgres.

A `regex` is an advanced regular expression of PostgreSQL's in the locale "C". Only its common part is
compiled: characters, `.`, brackets with ranges and classes such as `[:alpha:]`, `^ $ \\A \\Z \\y \\Y \\m \\M`,
`\\d \\s \\w \\D \\S \\W`, groups, alternatives, all quantifiers, and `(?i)` at the start. Python has other
words for some of it, such as `\\b` for `\\y`. Neither capturing nor greediness matters, since a pattern
only matches or does not.

The syntax: https://www.postgresql.org/docs/18/functions-matching.html#FUNCTIONS-POSIX-REGEXP
"""

from __future__ import annotations

import re
from functools import lru_cache

MOST_REPEATS = 255
"""Postgres's limit of a quantifier's bounds."""

_TOKEN = re.compile(
    r"""(?P<quantifier>(?:[*+?]|\{(?P<least>\d+)(?:(?P<comma>,)(?P<most>\d*))?\})\??)
      | (?P<bound>\{\d)
      | (?P<group>\((?:\?:)?(?!\?))
      | (?P<option>\(\?.?.?)
      | (?P<end>\)) | (?P<or>\|) | (?P<anchor>[\^$]) | (?P<bracket>\[\^?)
      | \\(?P<escape>.?)
      | (?P<any>\.) | (?P<character>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ANCHORS = {"^": r"\A", "$": r"\Z"}
_CONSTRAINTS = {"A": r"\A", "Z": r"\Z", "y": r"\b", "Y": r"(?!\b)", "m": r"\b(?=\w)", "M": r"\b(?<=\w)"}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SHORTHANDS = frozenset("dswDSW")
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "ascii": r"\x00-\x7f",
    "blank": r"\ \t",
    "cntrl": r"\x00-\x1f\x7f-\x9f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": r"\ -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\ \t-\r",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9a-fA-F",
}
_INSTEAD = {
    "b": r"\y for the edge of a word",
    "B": r"\Y for a place that is not the edge of a word, \\ for a backslash",
    "<": r"\m for the start of a word",
    ">": r"\M for the end of a word",
}


class UnsupportedPattern(ValueError):
    """A regular expression outside the part that is compiled. The text is a sentence without its period."""


@lru_cache(maxsize=1000)
def compiled(op: str, pattern: str) -> re.Pattern[str]:
    """Return the pattern of `like`, `ilike` or `regex`, to be searched for. Raises `UnsupportedPattern`."""
    if op == "regex":
        return _regex(pattern)
    plain = re.sub(r"\\(.)|(%)|(_)|(.)", _piece, pattern, flags=re.DOTALL)
    return re.compile(rf"\A{plain}\Z", re.DOTALL | re.ASCII | (re.IGNORECASE if op == "ilike" else 0))


def _piece(match: re.Match[str]) -> str:
    if match[2]:
        return ".*"
    return "." if match[3] else re.escape(match[1] or match[4])


def _regex(pattern: str) -> re.Pattern[str]:
    flags = re.DOTALL | re.ASCII
    at = len("(?i)") if pattern.startswith("(?i)") else 0
    pieces, depth, is_atom = [], 0, False  # a quantifier may follow an atom only
    while token := _TOKEN.match(pattern, at):
        kind, text, at = token.lastgroup, token[0], token.end()
        match kind:
            case "quantifier":
                if not is_atom:
                    raise UnsupportedPattern(
                        f"{text!r} has nothing before it to repeat. Write a group, such as (a*){{2}}"
                    )
                pieces.append(_quantifier(token))
            case "group":
                pieces.append("(?:")
                depth += 1
            case "end":
                pieces.append(")")
                depth -= 1
            case "anchor":
                pieces.append(_ANCHORS[text])
            case "escape":
                pieces.append(_escape(token["escape"]))
            case "bracket":
                piece, at = _bracket(pattern, at)
                pieces.append(text + piece)
            case "option":
                raise UnsupportedPattern(
                    f"{text!r} is an option or a lookaround. Only (?i) at the start, and (?:…), can be used. Write `not … regex` for text"
                    " that must not match"
                )
            case "bound":
                raise UnsupportedPattern(
                    f"{text!r} begins no bound. Write {{2}}, {{2,}} or {{2,5}}, or \\{{ for a brace"
                )
            case _:
                pieces.append(text if kind in ("any", "or") else re.escape(text))
        is_atom = kind in ("end", "bracket", "any", "character") or (
            kind == "escape" and token["escape"] not in _CONSTRAINTS
        )
        if depth < 0:
            break
    if depth:
        raise UnsupportedPattern("its parentheses are not balanced. Write \\( or \\) for a parenthesis")
    return re.compile("".join(pieces), flags | (re.IGNORECASE if pattern.startswith("(?i)") else 0))


def _quantifier(token: re.Match[str]) -> str:
    least, comma, most = token["least"], token["comma"], token["most"]
    if least is None:
        return token[0][0]
    bounds = [int(bound) if len(bound) <= 3 else MOST_REPEATS + 1 for bound in (least, most) if bound]
    if max(bounds) > MOST_REPEATS or bounds != sorted(bounds):
        raise UnsupportedPattern(f"{token[0]!r} must have bounds from 0 to {MOST_REPEATS}, the smaller one first")
    return f"{{{least}{comma or ''}{most or ''}}}"


def _escape(character: str) -> str:
    if character in _CONSTRAINTS:
        return _CONSTRAINTS[character]
    return f"\\{character}" if character in _SHORTHANDS else re.escape(_literal(character))


def _literal(character: str) -> str:
    """Return the character that an escape stands for."""
    if character in _CONTROLS:
        return _CONTROLS[character]
    if not character or not character.isascii() or character.isalnum():
        instead = _INSTEAD.get(character, "the character itself")
        raise UnsupportedPattern(f"the escape '\\{character}' can't be used. Write {instead}")
    return character


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Return the rest of a bracket expression, and where it ends. `at` is behind its `[` or `[^`."""
    pieces, start = [], at
    while at < len(pattern) and (pattern[at] != "]" or at == start):
        piece, first, at = _element(pattern, at, edge=at == start)
        if pattern.startswith("-", at) and not pattern.startswith("-]", at):
            last = _element(pattern, at + 1, edge=False) if first else ("", "", at)
            if not first or not last[1] or first > last[1]:
                raise UnsupportedPattern(
                    f"the range in {pattern[start : at + 2]!r} must go from a character to a later one, write \\- for a hyphen"
                )
            piece, at = f"{piece}-{last[0]}", last[2]
            if pattern.startswith("-", at) and not pattern.startswith("-]", at):
                raise UnsupportedPattern(
                    f"a range in {pattern[start : at + 1]!r} has two hyphens, write \\- for a hyphen"
                )
        pieces.append(piece)
    if at >= len(pattern):
        raise UnsupportedPattern("a bracket is not closed. Write \\[ for a bracket")
    return "".join(pieces) + "]", at + 1


def _element(pattern: str, at: int, *, edge: bool) -> tuple[str, str, int]:
    """Return a character or a class of a bracket expression for Python, the character (empty for a class), and where it
    ends."""
    character = pattern[at : at + 1]
    if character == "[" and pattern[at + 1 : at + 2] in (":", ".", "="):
        name, found, _ = pattern[at + 2 :].partition(":]")
        if pattern[at + 1] != ":" or not found or name not in _CLASSES:
            raise UnsupportedPattern(
                f"{pattern[at : at + 12]!r} is not a class. Use one of {', '.join(f'[:{one}:]' for one in _CLASSES)}"
            )
        return _CLASSES[name], "", at + len(name) + 4
    if character == "\\":
        escaped = pattern[at + 1 : at + 2]
        if escaped in _SHORTHANDS:
            return f"\\{escaped}", "", at + 2
        return re.escape(_literal(escaped)), _literal(escaped), at + 2
    if character == "-" and not edge and not pattern.startswith("-]", at):
        raise UnsupportedPattern("a hyphen in a bracket must be its first or last character, or be written as \\-")
    return re.escape(character), character, at + 1
