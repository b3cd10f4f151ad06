"""Read a database URL into the parameters of libpq, as libpq reads it.

asyncpg and libpq read some URLs differently: one with a `#` or `+`, with an IPv6 address among several, or with a
service. So this reader reads all of them, and each driver gets parameters.

Forms of other libraries are understood too: the URLs of SQLAlchemy (`postgresql+asyncpg://`), those of JDBC
(`jdbc:postgresql://`), and libpq's pairs (`host=db dbname=shop`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from urllib.parse import unquote

from headrace.model.database_url.parameters import PARAMETERS

_SCHEME = re.compile(r"(?P<jdbc>jdbc:)?postgres(?:ql)?(?P<driver>\+\w+)?://", re.IGNORECASE)

# libpq takes the first @ before a slash. A password with an unescaped @ reaches to the last one.
_URL = re.compile(
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^/?]*|[^/@]*))?@)?"
    r"(?P<hosts>[^/?]*)(?:/(?P<dbname>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?")
_PAIR = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s\\']|\\.|\\\Z)(?:[^\s\\]|\\.|\\\Z)*|))", re.DOTALL)
_NO_TOKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_NO_TEXT = re.compile("[\\0\\ud800-\\udfff]")

_PORTS = range(1, 65536)

_KNOWN = {parameter.name: parameter for parameter in PARAMETERS}

_SIMILAR = {
    "database": "dbname",
    "username": "user",
    "servername": "host",
    "targetservertype": "target_session_attrs",
    "logintimeout": "connect_timeout",
}
"""Names that other libraries have for parameters, apart from those that differ by little."""

UNREADABLE = (
    "can't be parsed. Write postgresql://user:password@host:5432/database. In a user and a password, write %2F for /,"
    " %40 for @, %3A for a colon and %25 for %."
)


class UrlError(ValueError):
    """A database URL is wrong. The text continues a sentence that begins with "The URL", and has no secrets."""


def is_url(text: str) -> bool:
    """Return whether a text begins like a database URL."""
    return _SCHEME.match(text.strip()) is not None


def read(dsn: str) -> dict[str, str]:
    """Read a database URL, or pairs such as `host=db dbname=shop`. Returns libpq's parameters. Empty ones are left out.

    Raises:
        UrlError: it can't be parsed, or has an unknown parameter or an invalid value.
    """
    if _NO_TEXT.search(dsn):
        raise UrlError(UNREADABLE)
    url = dsn.strip()
    scheme = _SCHEME.match(url)
    if scheme is None and url.lower().startswith(("http://", "https://")):
        raise UrlError(
            "is the URL of a server. Commands take it as --server or HEADRACE_SERVER. The URL of a database begins with"
            " postgresql://."
        )
    if scheme is None:
        parameters, may_name = _read_pairs(dsn), "password" not in dsn
    else:
        parameters, may_name = _read_url(url[scheme.end() :], scheme)
    check(parameters, may_name=may_name)
    return {name: value for name, value in parameters.items() if value}


def check(parameters: Mapping[str, str], *, may_name: bool = True) -> None:
    """Raise `UrlError` if a parameter is unknown, or has an invalid value. If the error may not name it, because it may be a
    part of a password, it says how URLs are written.
    """
    for name, value in parameters.items():
        reason = _wrong(name, value)
        if reason is not None:
            raise UrlError(reason if may_name else UNREADABLE)


def _read_url(text: str, scheme: re.Match[str]) -> tuple[dict[str, str], bool]:
    """Return the parameters, and whether an error may name one. If not, it may be a part of a password."""
    found = _URL.fullmatch(text)
    if found is None or _NO_TOKEN.search(text):
        raise UrlError(UNREADABLE)
    parameters = {name: _decoded(found[name]) for name in ("user", "password", "dbname")}
    hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")]
    if not all(hosts):
        raise UrlError(UNREADABLE)
    parameters["host"] = ",".join(_decoded(host["v6"] or host["name"]) for host in hosts if host)
    ports = [_decoded(host["port"]) for host in hosts if host]
    parameters["port"] = ",".join(ports) if any(ports) else ""
    query = found["query"] or ""
    foreign = bool(scheme["jdbc"] or scheme["driver"])
    seen = set()
    for pair in filter(None, query.split("&")):
        name, equals, value = (_decoded(part) for part in (pair.replace("+", " ") if foreign else pair).partition("="))
        if not equals:
            raise UrlError(UNREADABLE)
        if foreign and name == "host" and name in seen:
            raise UrlError(
                "has several parameters host. Write host=one,other&port=5432,5433, which SQLAlchemy reads too."
            )
        seen.add(name)
        name, value = _tls(name, value, jdbc=scheme["jdbc"] is not None)
        parameters[name] = value
    return parameters, "@" not in query and "password" not in query.lower()


def _decoded(token: str | None) -> str:
    return unquote((token or "").strip())


def _tls(name: str, value: str, *, jdbc: bool) -> tuple[str, str]:
    """Return the parameter for older and other ways to say `sslmode`."""
    if name == "ssl":  # JDBC verifies the certificate, libpq does not
        return "sslmode", {"true": "verify-full" if jdbc else "require", "false": "disable"}.get(value, value)
    if name == "requiressl":
        return "sslmode", "require" if value == "1" else "prefer"
    return name, value


def _read_pairs(text: str) -> dict[str, str]:
    parameters, position, end = {}, 0, len(text.rstrip())
    while position < end:
        found = _PAIR.match(text, position)
        if found is None:
            raise UrlError(UNREADABLE)
        name, value = _tls(
            found[1], re.sub(r"\\(.|\Z)", r"\1", found[2] or found[3] or "", flags=re.DOTALL), jdbc=False
        )
        parameters[name] = value
        position = found.end()
    if not parameters:
        raise UrlError(UNREADABLE)
    return parameters


def _wrong(name: str, value: str) -> str | None:
    """The reason why a parameter is wrong, or None."""
    parameter = _KNOWN.get(name)
    if parameter is None:
        return _unknown(name)
    if name == "port" and not is_ports(value):
        return UNREADABLE
    if value and parameter.choices and value not in parameter.choices:
        return f"has {name}={value!r:.40}. Use one of {', '.join(parameter.choices)}."
    if value and parameter.number and not re.fullmatch(r"\s*-?\d{1,9}\s*", value, re.ASCII):
        return f"has {name}={value!r:.40}, which is not a number."
    return None


def is_ports(value: str) -> bool:
    """Return whether a text is a port, or ports separated by commas, of which any may be empty."""
    return all(re.fullmatch(r"\d{0,5}", port, re.ASCII) and int(port or 1) in _PORTS for port in value.split(","))


def _unknown(name: str) -> str:
    plain = name.lower().replace("_", "")
    plainly = _SIMILAR | {known.replace("_", ""): known for known in _KNOWN}
    close = difflib.get_close_matches(plain, plainly, n=1, cutoff=0.75)
    hint = f"Did you mean {plainly[close[0]]}?" if close else "Leave it out."
    return (
        f"has the parameter {name!r:.60}, which libpq and psql do not have. {hint} A setting of the server is written"
        " options=-c%20NAME%3DVALUE."
    )
