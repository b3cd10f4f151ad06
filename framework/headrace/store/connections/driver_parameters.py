"""The parameters of a database URL for asyncpg: completed as by libpq, with those refused that asyncpg would ignore at the
cost of security.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from headrace.model.database_url import PARAMETERS, UrlError, check, read
from headrace.model.database_url.parameters import ANY, URL
from headrace.model.database_url.reading import is_ports
from headrace.model.errors import DatabaseRefused
from headrace.model.text.masking import masked
from headrace.store.connections.addresses import Addresses

CONNECT_TIMEOUT = 10.0
"""The connect timeout without `connect_timeout`, in seconds."""

_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
_VERIFYING = ("verify-ca", "verify-full")
_SETTING = re.compile(r"(?:^|\s)(?:-c\s*|--)([A-Za-z_][\w.-]*)\s*=")


class DriverParameters:
    """The parameters of a database URL for connections.

    Args:
        dsn: a database URL, or libpq's pairs.
        environment: completes it, see `Parameter.variable`.

    Attributes:
        addresses: the servers.
        connect_timeout: the timeout for connecting in seconds.
        options: settings of the session, as `options` of libpq has them.
        settings: the names of these settings.

    Raises:
        DatabaseRefused: the URL is wrong, a file that it names is missing, or asyncpg can't do what it asks for.
    """

    def __init__(self, dsn: str, environment: Mapping[str, str] = os.environ) -> None:
        try:
            given = read(dsn)
            _refuse_missing_files(given)
            found = _completed(given, environment)
            _refuse(found)
            self.addresses = Addresses(found)
            self._parameters = found = _certificate(found | _tls(found, self.addresses), environment)
        except UrlError as error:
            raise DatabaseRefused(f"The database URL {masked(dsn)!r} {error}") from None
        self._context: ssl.SSLContext | None = None
        self.connect_timeout = connect_timeout(found)
        self.options = found.get("options", "")
        self.settings = {name.replace("-", "_") for name in _SETTING.findall(self.options)}

    def arguments(self) -> dict[str, Any]:
        """The arguments of asyncpg for a connection, which reads the files that they name, since these may change."""
        given = self._parameters
        found: dict[str, Any] = {
            row.argument: given[row.name] for row in PARAMETERS if row.name in given and row.argument not in ("", URL)
        }
        if self.addresses.all:
            found["host"], found["port"] = map(list, zip(*self.addresses.all, strict=True))
        elif "port" in given:
            found["port"] = int(given["port"])
        tls = {row.name: given[row.name] for row in PARAMETERS if row.name in given and row.argument == URL}
        if given.get("sslrootcert") == "system":
            if self._context is None:
                self._context = _system_context(tls)
            return found | {"ssl": self._context, "direct_tls": tls.get("sslnegotiation") == "direct"}
        return found | {"dsn": f"postgresql://?{urlencode(tls, quote_via=quote)}"}


def connect_timeout(parameters: Mapping[str, str]) -> float:
    """The connect timeout in seconds. It has bounds, since a server may be silent for ever."""
    seconds = float(parameters.get("connect_timeout", 0))
    return min(max(seconds, 2.0), 600.0) if seconds > 0 else CONNECT_TIMEOUT


def _completed(parameters: dict[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Complete parameters as libpq does: by the service's file, then by the environment."""
    variables = {row.name: environment.get(row.variable, "") for row in PARAMETERS if row.variable}
    from_environment = {name: value for name, value in variables.items() if value}
    both = from_environment | parameters
    if "service" in both:
        both = from_environment | _service(both, environment) | parameters
    try:
        check(both)
    except UrlError:
        if "port" in from_environment and both["port"] == from_environment["port"] and not is_ports(both["port"]):
            raise UrlError(f"is completed by PGPORT={both['port']!r:.40}. Give a number from 1 to 65535.") from None
        raise
    return both


def _service(parameters: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a service."""
    own = parameters.get("servicefile")
    files = [Path(own or os.path.expanduser("~/.pg_service.conf"))]
    if directory := environment.get("PGSYSCONFDIR"):
        files.append(Path(directory) / "pg_service.conf")
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            if file == files[0] and own:
                raise UrlError(f"has a service whose file {file} can't be read.") from error
            continue
        if found := _section(lines, parameters["service"]):
            return read(" ".join(found))
    searched = " and ".join(map(str, files))
    raise UrlError(
        f"has service={parameters['service']!r:.60}, which is not in {searched}. Add [{parameters['service']}] there."
    )


def _section(lines: list[str], name: str) -> list[str]:
    """The lines of a section of a service file, as pairs."""
    found, inside = [], False
    for line in map(str.strip, lines):
        if line.startswith("["):
            inside = line == f"[{name}]"
        elif inside and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            found.append(f"{key}='{quoted}'")
    return found


def _refuse(parameters: Mapping[str, str]) -> None:
    """Raise `UrlError` for what asyncpg can't do."""
    for row in PARAMETERS:
        value = parameters.get(row.name)
        if value and (value in row.refused or row.refused == ANY):
            shown = row.name if row.refused == ANY else f"{row.name}={value}"
            raise UrlError(f"has {shown}, which connections of Headrace's store can't honour. {row.instead}")


def _refuse_missing_files(parameters: Mapping[str, str]) -> None:
    """Raise `UrlError` if a file that a URL names does not exist. asyncpg would take it for a server that is not reachable."""
    for name in _FILES:
        path = parameters.get(name, "")
        if path and path != "system" and not os.path.isfile(path):
            raise UrlError(f"has {name}={path!r:.200}, where there is no file that can be read.")


def _tls(parameters: Mapping[str, str], addresses: Addresses) -> dict[str, str]:
    """The parameters that channel binding and the system's certificates change. Raises `UrlError` if they can't be honoured."""
    root, mode = parameters.get("sslrootcert"), parameters.get("sslmode")
    if root == "system":
        if mode not in (None, "verify-full"):
            raise UrlError(f"has sslmode={mode} with sslrootcert=system. Use sslmode=verify-full with it.")
        mode = "verify-full"
    bound = parameters.get("channel_binding") == "require"
    if (bound or "require_auth" in parameters) and mode == "require" and (root or os.path.isfile(_default_root())):
        mode = "verify-ca"  # libpq and asyncpg take it for that, as long as the file is there
    by_tls = mode != "disable" and addresses.all and not any(host.startswith("/") for host, _ in addresses.all)
    if bound:
        if not by_tls:
            raise UrlError("has channel_binding=require without TLS. Connect by TLS, or leave it out.")
        if mode not in _VERIFYING:
            mode, root = "verify-full", root or "system"
    if "require_auth" in parameters and not (by_tls and mode in _VERIFYING):
        raise UrlError(
            "has require_auth, which connections of Headrace's store can't honour: asyncpg logs in as the server asks."
            " Verify the server instead, with sslmode=verify-full, or leave it out."
        )
    if mode == "verify-full" and parameters.get("host") and parameters.get("hostaddr"):
        raise UrlError(
            "has host and hostaddr with sslmode=verify-full. Leave hostaddr out, since asyncpg would compare the certificate"
            " with the address."
        )
    return {name: value for name, value in (("sslmode", mode), ("sslrootcert", root)) if value}


def _certificate(parameters: dict[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The parameters without the client's certificate, if none may be sent. Raises `UrlError` if asyncpg would find one."""
    if parameters.get("sslcertmode") != "disable":
        return parameters
    found = "PGSSLCERT" if environment.get("PGSSLCERT") else os.path.expanduser("~/.postgresql/postgresql.crt")
    by_asyncpg = parameters.get("sslmode") != "disable" and parameters.get("sslrootcert") != "system"
    if by_asyncpg and (found == "PGSSLCERT" or os.path.isfile(found)):
        raise UrlError(
            f"has sslcertmode=disable, and asyncpg would send the certificate of {found}. Remove that, or verify the server"
            " with sslrootcert=system."
        )
    return {name: value for name, value in parameters.items() if name not in ("sslcert", "sslkey", "sslpassword")}


def _default_root() -> str:
    return os.path.expanduser("~/.postgresql/root.crt")


def _system_context(tls: Mapping[str, str]) -> ssl.SSLContext:
    """TLS that verifies the server with the system's certificates. asyncpg knows certificates in a file only. Reading the
    system's may take a tenth of a second.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["postgresql"])
    if "sslcert" in tls:
        context.load_cert_chain(tls["sslcert"], tls.get("sslkey"), lambda: tls.get("sslpassword", ""))
    if "sslcrl" in tls:
        context.load_verify_locations(tls["sslcrl"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    for name, bound in (
        ("ssl_min_protocol_version", "minimum_version"),
        ("ssl_max_protocol_version", "maximum_version"),
    ):
        if name in tls:
            setattr(context, bound, ssl.TLSVersion[tls[name].replace(".", "_")])
    return context
