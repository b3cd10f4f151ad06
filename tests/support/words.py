"""Hypothesis strategies for keys and filters, with every character that could trouble a parser."""

from __future__ import annotations

from hypothesis import strategies as st

# Tokens. Plain ones are frequent, so that filters and keys match. There are wildcards inside longer
# tokens, characters that regular expressions, SQL, format() and LIKE treat specially, and other scripts.
_SPECIAL = ["a*", "*a", "**", ">>", "a>", "^", "$", "a$", "(", ")", "[a]", "[^.]+", "{1}", "|", "\\", "\\d", "?", "+",
            "'", '"', "''", "$1", "$sql$", "%", "%s", "%1$s", "_", "%20", "-", "--", "/*", ";", "(?i)a", "***", "ä",
            "A", "ß", "İ", "日本", "🦦", "e\u0301", "\u00e9", "\u200b", "\ufeff"]  # fmt: skip
_PLAIN = ["a", "b", "c"]
_characters = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters=".")

tokens = st.one_of(
    st.sampled_from(_PLAIN),
    st.sampled_from(_SPECIAL),
    st.text(_characters, min_size=1, max_size=4).filter(lambda token: token not in ("*", ">")),
)


def keys(max_tokens: int = 6) -> st.SearchStrategy[str]:
    """Valid keys. A few of them have many tokens."""
    usual = st.lists(tokens, min_size=1, max_size=max_tokens)
    long = st.lists(st.sampled_from(_PLAIN), min_size=15, max_size=40)
    return st.one_of(usual, usual, usual, long).map(".".join)


@st.composite
def filters(draw: st.DrawFn, among: list[str] | None = None) -> str:
    """Valid filters, most of them made from a key of `among`, so that they match something."""
    key = draw(st.sampled_from(among) if among else keys())
    parts = key.split(".")
    for place in range(len(parts)):
        match draw(st.integers(0, 5)):
            case 0 | 1:
                parts[place] = "*"
            case 2:
                parts[place] = draw(tokens)
    match draw(st.integers(0, 5)):
        case 0 | 1:
            parts = [*parts[: draw(st.integers(0, len(parts)))], ">"]
        case 2:
            parts = parts[: draw(st.integers(1, len(parts)))]
        case 3:
            parts = [*parts, draw(st.one_of(st.just("*"), tokens))]
    return ".".join(parts)


REFUSED = [*map(chr, range(0x01, 0x21)), *map(chr, range(0x7F, 0xA1)), "\u1680", *map(chr, range(0x2000, 0x200B)),
           "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"]  # fmt: skip
"""Every character that no key has and that Postgres can store: control characters and white space."""

_pieces = st.one_of(st.sampled_from([".", "*", ">", "..", "a", "b", *_SPECIAL]), st.sampled_from(REFUSED), _characters)
texts = st.one_of(
    st.lists(_pieces, max_size=6).map("".join),
    st.text(st.sampled_from("ab.*> \n"), max_size=6),
    st.integers(1020, 1030).map(lambda size: "k" * size),
    st.integers(510, 514).map(lambda size: "ü" * size),
)
"""Texts that Postgres can store, of which about half are keys or filters."""
