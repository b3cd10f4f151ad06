"""Masks secrets in database URLs, in connection strings of libpq, and in the settings of push consumers.

Everything that shows such a value uses these functions: errors, logs, answers and tables. In doubt they mask
too much: a URL with an unescaped `/` or `@` in its password loses its host, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus, urlsplit

HIDDEN = "…"
"""Replaces a secret."""

_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_PAIRS = re.compile(r"\s*\w+\s*=")

_SECRET_NAME = re.compile(r"pass(?!file)|pwd|secret|token|credential|api_?key|scram_\w+_key", re.IGNORECASE)
"""Names of parameters with secrets: `password`, `sslpassword`, `oauth_client_secret`. `passfile` names a file."""

_USERINFO = re.compile(r"^([^:/@]*):.*@", re.DOTALL)
_USER = re.compile(r"^[^/?#]*@")
_USERINFO_IN_TEXT = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&#;])([^=?&#;]*)=([^&]*)")
_PAIR = re.compile(r"(\w+)(\s*=\s*)('(?:[^'\\]|\\.)*(?:'|\\?\Z)|(?:\\.|[^\s\\'])(?:\\.|[^\s\\])*|)", re.DOTALL)


def masked(dsn: str) -> str:
    """Return a database URL or a connection string without its passwords and other secrets."""
    if found := _URL.match(dsn):
        shown = _masked_url(dsn[found.end() :])
        if not found[0].lstrip().lower().startswith("postgres"):  # the user of another URL may be a token
            shown = _USER.sub(f"{HIDDEN}@", shown)
        return found[0] + shown
    if _PAIRS.match(dsn):
        return _PAIR.sub(_masked_pair, dsn)
    return _masked_url(dsn)  # such as user:password@host, whose scheme is missing


def masked_text(text: str) -> str:
    """Return a text, such as the message of a driver, with the secrets of the URLs and connection strings in it masked."""
    return _PAIR.sub(_masked_pair, _USERINFO_IN_TEXT.sub(rf"\1:{HIDDEN}@", text))


def _masked_url(text: str) -> str:
    """Mask a URL without its scheme. Parameters are masked first, since a password may contain an `@`."""
    return _USERINFO.sub(rf"\1:{HIDDEN}@", _PARAMETER.sub(_masked_parameter, text))


def _masked_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}={HIDDEN}" if _SECRET_NAME.search(unquote_plus(found[2])) else found[0]


def _masked_pair(found: re.Match[str]) -> str:
    if "://" in found[3]:  # libpq takes a whole URL as dbname
        return f"{found[1]}{found[2]}{masked(found[3].strip(chr(39)))}"
    return f"{found[1]}{found[2]}{HIDDEN}" if _SECRET_NAME.search(found[1]) else found[0]


def masked_push(push: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a push consumer for readers without `admin`: of the URL its host, of the
    headers their names. A path or a query often contains a token."""
    found = dict(push)
    found["url"] = masked_push_url(push["url"])
    if push.get("headers"):
        found["headers"] = dict.fromkeys(push["headers"], HIDDEN)
    if push.get("secret"):
        found["secret"] = HIDDEN
    return found


def masked_push_url(url: str) -> str:
    """Return a push URL with its host alone, such as `https://shop.example/…`."""
    try:
        parts = urlsplit(url)
    except ValueError:  # of an earlier version, which accepted it
        return HIDDEN
    beyond_host = parts.path not in ("", "/") or parts.query or parts.fragment
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{'/' + HIDDEN if beyond_host else parts.path}"
