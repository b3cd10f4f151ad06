"""Makes the findings of a check, one function per level."""

from __future__ import annotations

from headrace.model.capture import Finding


def ok(what: str, text: str) -> Finding:
    """Return a finding for something that is right."""
    return Finding(what=what, level="ok", message=text)


def warning(what: str, text: str, hint: str | None = None) -> Finding:
    """Return a finding for something that works, but less well than it could."""
    return Finding(what=what, level="warning", message=text, hint=hint)


def error(what: str, text: str, hint: str | None = None) -> Finding:
    """Return a finding for something that can't work."""
    return Finding(what=what, level="error", message=text, hint=hint)
