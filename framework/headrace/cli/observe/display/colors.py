"""The colors that have a meaning."""

from __future__ import annotations

GOOD, WARN, BAD, STUCK, HELD, FAINT, STRONG = "#5fd7af", "#e5b567", "#f2777a", "#c792ea", "#82aaff", "#7f8c98", "bold"
"""In this order: working, growing lag or no worker, dead or full, blocked, paused, unimportant, a name."""
