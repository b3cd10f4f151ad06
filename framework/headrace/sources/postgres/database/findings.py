"""Makes the findings of a check, one function per level, and formats sizes for people."""

from __future__ import annotations

from headrace.model.capture import Finding


def good(what: str, told: str) -> Finding:
    """Return a finding for something that is right."""
    return Finding(what=what, level="ok", told=told)


def warning(what: str, told: str, mend: str | None = None) -> Finding:
    """Return a finding for something that works, but less well than it could."""
    return Finding(what=what, level="warning", told=told, mend=mend)


def error(what: str, told: str, mend: str | None = None) -> Finding:
    """Return a finding for something that can't work."""
    return Finding(what=what, level="error", told=told, mend=mend)


def as_size(size: int) -> str:
    """Return a size in bytes as text, such as `1 GB`."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
