"""Check of the names of query parameters. An unknown one is refused, as an unknown field of a body is."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.server.errors import Problem

MAX_NAMED = 20
"""Largest number of unknown parameters that an error names."""


def check_parameters(sent: Iterable[str], known: Collection[str]) -> None:
    """Raise a `Problem` for query parameters that a route doesn't take."""
    unknown = [name for name in dict.fromkeys(sent) if name not in known]
    if unknown:
        remedy = f"The parameters are {', '.join(known)}." if known else "This call takes no query parameters."
        errors = {name: [f"The parameter does not exist. {remedy}"] for name in unknown[:MAX_NAMED]}
        text = f"The query parameter {unknown[0]!r:.80} does not exist. {remedy}"
        raise Problem(422, "invalid", text, validation_errors=errors)
