"""The names of streams, sources, schedules and further databases."""

from __future__ import annotations

import re

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
"""A name. The functions `declare_stream` and `create_source` of the database check the same."""

NAME_RULE = "Take 1 to 48 lower-case letters, digits, '-' and '_', the first one a letter or digit."
