"""Makes the findings of a check, one function per level."""

from __future__ import annotations

from headrace.model.capture import Finding


def ok(what: str, text: str) -> Finding:
    """Return a finding for something that is right."""
    return Finding(what=what, level="ok", told=text)


def warning(what: str, text: str, mend: str | None = None) -> Finding:
    """Return a finding for something that works, but less well than it could."""
    return Finding(what=what, level="warning", told=text, mend=mend)


def error(what: str, text: str, mend: str | None = None) -> Finding:
    """Return a finding for something that can't work."""
    return Finding(what=what, level="error", told=text, mend=mend)
