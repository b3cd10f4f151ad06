"""Options that select the server or database for a command, with the environment and the context in use
as fallbacks.

A command calls a server over HTTP and a database by SQL, and prints the same either way. Without any of
these settings it uses the project's database, the server on this machine or the embedded Postgres, see
`preferred_server`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.connection import contexts
from headrace.cli.errors import UsageError
from headrace.cli.options.common import flag
from headrace.client.address import DEFAULT_URL, Server
from headrace.model.errors import ConfigurationError


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Backend:
    """Options that select the server or the database."""

    server: Annotated[
        str | None,
        Parameter(
            name="--server",
            show_default=False,
            help="The URL of a server, such as http://localhost:7376. Default: HEADRACE_SERVER, then the context in use.",
        ),
    ] = None
    token: Annotated[
        str | None,
        Parameter(
            name="--token",
            show_default=False,
            help="The token for the server. Other users may see it, so prefer HEADRACE_TOKEN or a context.",
        ),
    ] = None
    ca_file: Annotated[
        str | None,
        Parameter(
            name="--ca-file",
            show_default=False,
            help="A PEM file with the certificate authorities to trust for https, instead of the system's. Default: HEADRACE_CA_FILE.",
        ),
    ] = None
    database: Annotated[
        str | None,
        Parameter(
            name="--database",
            show_default=False,
            help="A Postgres URL, instead of a server, such as postgresql://user:password@host:5432/database. Default:"
            " HEADRACE_DATABASE, then the context in use, then a server on this machine, then the embedded Postgres. Other"
            " users of the machine can see a password in it, but not in HEADRACE_DATABASE.",
        ),
    ] = None
    as_curl: Annotated[bool, flag("Only print the request to a server, as a curl command.")] = False

    def skips_confirmation(self, yes: bool) -> bool:
        """Return whether no confirmation is needed, because of --yes or --as-curl."""
        return yes or self.as_curl

    def require_single_request(self, hint: str) -> None:
        """Raise `UsageError` if --as-curl is given, for a command that takes several requests."""
        if self.as_curl:
            raise UsageError(f"--as-curl can print only one request, and this needs several. To avoid that, {hint}.")

    def resolve(self, environment: Mapping[str, str] = os.environ) -> Server | str | None:
        """Return the server, the URL of the database, or None for the project's database or the embedded one.

        Raises:
            UsageError: options exclude each other.
            ConfigurationError: environment variables exclude each other, or a value is invalid.
        """
        self._check()
        if self.as_curl:
            return self._server(environment) or self._with_credentials(Server(), environment)
        return self.database or self._server(environment) or self._find_database(environment)

    def _check(self) -> None:
        if self.server and self.database:
            raise UsageError("Give either --server or --database, not both.")
        if self.as_curl and self.database:
            raise UsageError("--as-curl prints a request to a server. Leave out --database.")
        for option, value in (("--token", self.token), ("--ca-file", self.ca_file)):
            if self.database and value:
                raise UsageError(f"{option} is only for a server. Leave out {option} or --database.")

    def _server(self, environment: Mapping[str, str]) -> Server | None:
        """Return the server named by an option, by the environment or by the context in use, if there is one."""
        url = environment.get("HEADRACE_SERVER")
        if self.server:
            return self._with_credentials(Server(self.server), environment)
        if url and environment.get("HEADRACE_DATABASE") and not self.as_curl:
            raise ConfigurationError(
                "HEADRACE_SERVER and HEADRACE_DATABASE are both set. Unset one of them, or give --server or --database."
            )
        if url:
            return self._with_credentials(Server(url), environment)
        if environment.get("HEADRACE_DATABASE") and not self.as_curl:
            return None
        context = contexts.in_use(environment)
        if context is None or context.server is None:
            return None
        return self._with_credentials(Server(context.server, context.token, context.ca_file), environment)

    def _with_credentials(self, server: Server, environment: Mapping[str, str]) -> Server:
        """Return the server with the token and the CA file that take precedence."""
        return Server(
            server.url,
            self.token or environment.get("HEADRACE_TOKEN") or server.token,
            self.ca_file or environment.get("HEADRACE_CA_FILE") or server.ca_file,
        )

    def _find_database(self, environment: Mapping[str, str]) -> str | None:
        for option, value in (("--token", self.token), ("--ca-file", self.ca_file)):
            if value:
                raise UsageError(f"{option} needs a server. Give --server, such as --server {DEFAULT_URL}.")
        if environment.get("HEADRACE_DATABASE"):
            return environment["HEADRACE_DATABASE"]
        context = contexts.in_use(environment)
        return None if context is None else context.database
