"""Options for the settings of a process, made of their description in `headrace.app.settings`."""

from __future__ import annotations

import re
from typing import Any

from cyclopts import Parameter

from headrace.app.settings import SETTINGS, Setting

VISIBLE = "Other users of the machine can see a password in it, but not in HEADRACE_DATABASE."
"""What to know of a database's URL on the command line."""

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def process_option(name: str, more: str = "", **details: Any) -> Parameter:
    """Declare the option of a setting.

    Args:
        name: the setting.
        more: sentences that follow the description.
        details: further arguments of `Parameter`.
    """
    setting = _BY_NAME[name]
    text = f"{setting.description} By default: {_default(setting)}.{more and f' {more}'}"
    words: dict[str, Any] = {"name": f"--{name.replace('_', '-')}", "show_default": False, "negative": ""}
    return Parameter(help=_LINK.sub(r"\1", text).replace("`", ""), **(words | details))


def _default(setting: Setting) -> str:
    return setting.default_text or str(setting.default)
