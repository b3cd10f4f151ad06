"""Connections to databases whose URLs are stored, or come from users of the API.

libpq completes a URL from the environment (`PGPASSWORD`, `PGSERVICE`, ...) and from files of the
process's user (`~/.pgpass`, `~/.postgresql`). A URL with a foreign host would thus get the server's own password, and
one with a path would make the server read or write that file. Here every parameter is explicit, and only parameters
that name no file are accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.sources.postgres.connection.addresses import Parameters
from headrace.sources.postgres.errors import SourceStopped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg.pq import ConninfoOption

Refusal = Callable[[str], str | None]
"""Returns why an address may not be connected to, in one sentence. None if it may be."""


class UntrustedDatabase(msgspec.Struct, frozen=True):
    """A database whose URL comes from a user of the API.

    Attributes:
        url: the Postgres URL, or `key=value` words.
        refusal: checks each address. None allows all.
    """

    url: str
    refusal: Refusal | None = None


SourceDatabase = str | UntrustedDatabase
"""A database to capture from: a URL of the operator, which libpq may complete, or one of a user."""

MAX_HOSTS = 8
"""Largest number of hosts in a URL. They are tried one after the other."""

_NOWHERE = "/dev/null/none"
"""A path that can't exist. An empty one would stand for a file in the home directory."""

_SERVERS = ("host", "hostaddr", "port", "dbname", "target_session_attrs", "load_balance_hosts")
_SESSION = ("user", "password", "options", "application_name", "fallback_application_name", "client_encoding")
_TIMES = (
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    *(f"keepalives_{n}" for n in ("idle", "interval", "count")),
)
_TLS = ("sslmode", "sslnegotiation", "sslsni", "sslcompression", "sslcertmode", "sslrootcert", "channel_binding")
_VERSIONS = tuple(f"{bound}_protocol_version" for bound in ("ssl_min", "ssl_max", "min", "max"))
_LOGIN = ("require_auth", "gssencmode", "gssdelegation")
_ACCEPTED = frozenset((*_SERVERS, *_SESSION, *_TIMES, *_TLS, *_VERSIONS, *_LOGIN))

_PASSWORD_METHODS = ("none", "password", "md5", "scram-sha-256")
"""Methods of authentication that need nothing but the URL. Others use tickets of the process's user."""

_FIXED: dict[str, str | None] = {
    **dict.fromkeys(("passfile", "sslcert", "sslkey", "sslcrl"), _NOWHERE),
    **dict.fromkeys(("sslcrldir", "sslpassword", "requirepeer", "gsslib", "oauth_client_secret"), ""),
    **dict.fromkeys(("sslcertmode", "gssencmode"), "disable"),
    "gssdelegation": "0",
    "krbsrvname": "postgres",
    **dict.fromkeys(("service", "servicefile", "sslkeylogfile"), None),
}
"""Parameters that a user can't choose. None leaves one out."""

_SAFE = {"connect_timeout": "10", "max_protocol_version": "3.0", "min_protocol_version": "3.0"}
"""Values in place of the environment's, for parameters that have no default and can't be empty."""


def explicit(
    parameters: Mapping[str, str], options: Iterable[ConninfoOption], environment: Mapping[str, str] = os.environ
) -> Parameters:
    """Return the parameters of a user's URL, with an explicit value for each that libpq would complete.

    Args:
        options: all parameters that libpq knows.

    Raises:
        SourceStopped: the URL has no host, too many, or no user, or it has a parameter that is not accepted.
    """
    for name in parameters:
        if name not in _ACCEPTED or (name == "sslrootcert" and parameters[name] != "system"):
            raise SourceStopped(
                f"The source's database URL has the parameter {name}, which can't be used for a stored source. Leave it out, or"
                " capture the tables with an app that declares them in code."
            )
    for name, what in (("user", "user"), ("host", "host")):
        if not parameters.get(name) and not (name == "host" and parameters.get("hostaddr")):
            raise SourceStopped(
                f"The source's database URL has no {what}. Write postgresql://user:password@host:5432/database."
            )
    count = max(len(parameters.get(name, "").split(",")) for name in ("host", "hostaddr"))
    if count > MAX_HOSTS:
        raise SourceStopped(f"The source's database URL has {count:,} hosts. Give at most {MAX_HOSTS}.")
    found = {"dbname": parameters["user"], "password": "", "options": "", "require_auth": ",".join(_PASSWORD_METHODS)}
    found["sslrootcert"] = "system" if parameters.get("sslmode") == "verify-full" else _NOWHERE
    found |= parameters
    _check_methods(found["require_auth"])
    known = set()
    for option in options:
        name = option.keyword.decode()
        known.add(name)
        if name in _FIXED:
            fixed = _FIXED[name]
            found.pop(name, None)
            if fixed is not None:
                found[name] = fixed
        elif name not in found and option.envvar is not None:
            default = (option.compiled or b"").decode() or _SAFE.get(name, "")
            if default or environment.get(option.envvar.decode()):
                found[name] = default
    return {name: value for name, value in found.items() if name in known}


def _check_methods(text: str) -> None:
    """Raise `SourceStopped` for a `require_auth` that allows other methods than those with a password."""
    for method in text.split(","):
        if method.strip() not in _PASSWORD_METHODS:
            raise SourceStopped(
                f"The source's database URL has require_auth={text!r}. It can name {', '.join(_PASSWORD_METHODS)}."
            )


def check_address(address: str, refusal: Refusal | None) -> None:
    """Raise `SourceStopped` if the address may not be connected to, or is none. A Unix socket has none.
    On a socket, the server may accept the process's own user.
    """
    if not address:
        raise SourceStopped(
            "The source's database URL names a Unix socket, which can't be used for a stored source. Give a host, or capture the tables"
            " with an app that declares them in code."
        )
    try:
        reason = None if refusal is None else refusal(address)
    except ValueError:
        reason = f"{address!r} is not an IP address"
    if reason is not None:
        raise SourceStopped(f"The captured database can't be reached: {reason.rstrip('.')}.")
