"""Options that select the server or database for a command, with the environment and the context in use
as fallbacks.

A command calls a server over HTTP and a database by SQL, and prints the same either way. Without any of
these settings it uses the project's database or the embedded Postgres.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.options import contexts
from headrace.cli.options.common import flag
from headrace.cli.problems import UsageProblem
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
            help="A server's URL, such as http://localhost:7376. Otherwise: HEADRACE_SERVER, or the context in use.",
        ),
    ] = None
    token: Annotated[
        str | None,
        Parameter(
            name="--token",
            show_default=False,
            help="The token that the server wants. Better HEADRACE_TOKEN or a context, which other users don't see.",
        ),
    ] = None
    ca_file: Annotated[
        str | None,
        Parameter(
            name="--ca-file",
            show_default=False,
            help="A file in PEM with the authorities to trust for https, instead of the system's. Otherwise: HEADRACE_CA_FILE.",
        ),
    ] = None
    database: Annotated[
        str | None,
        Parameter(
            name="--database",
            show_default=False,
            help="Instead of a server a Postgres URL, such as postgresql://user:password@host:5432/database. Otherwise:"
            " HEADRACE_DATABASE, and without all of these the embedded Postgres.",
        ),
    ] = None
    as_curl: Annotated[bool, flag("Do nothing: print the request to a server as a call of curl.")] = False

    def asked(self, yes: bool) -> bool:
        """Whether no confirmation is needed, because of --yes, or because --as-curl does nothing."""
        return yes or self.as_curl

    def one_request(self, instead: str) -> None:
        """Raise `UsageProblem` if --as-curl is given, for a command that takes several requests."""
        if self.as_curl:
            raise UsageProblem(f"--as-curl prints one request, and this takes several: {instead}.")

    def found(self, environment: Mapping[str, str] = os.environ) -> Server | str | None:
        """The server, the URL of the database, or None for the project's database or the embedded one.

        Raises:
            UsageProblem: options exclude each other.
            ConfigurationError: environment variables exclude each other, or a value is invalid.
        """
        self._check()
        if self.as_curl:
            return self._server(environment) or self._dressed(Server(), environment)
        return self.database or self._server(environment) or self._elsewhere(environment)

    def _check(self) -> None:
        if self.server and self.database:
            raise UsageProblem("Give --server or --database, and not both.")
        if self.as_curl and self.database:
            raise UsageProblem("--as-curl prints a request to a server: leave --database out.")
        for option, value in (("--token", self.token), ("--ca-file", self.ca_file)):
            if self.database and value:
                raise UsageProblem(f"{option} is for a server: leave it out, or --database.")

    def _server(self, environment: Mapping[str, str]) -> Server | None:
        """The server named by an option, by the environment or by the context in use, if there is one."""
        named = environment.get("HEADRACE_SERVER")
        if self.server:
            return self._dressed(Server(self.server), environment)
        if named and environment.get("HEADRACE_DATABASE") and not self.as_curl:
            raise ConfigurationError(
                "HEADRACE_SERVER and HEADRACE_DATABASE are both set: unset one of them, or give --server or --database."
            )
        if named:
            return self._dressed(Server(named), environment)
        if environment.get("HEADRACE_DATABASE") and not self.as_curl:
            return None
        context = contexts.in_use(environment)
        if context is None or context.server is None:
            return None
        return self._dressed(Server(context.server, context.token, context.ca_file), environment)

    def _dressed(self, server: Server, environment: Mapping[str, str]) -> Server:
        """The server with the token and the CA file that take precedence."""
        return Server(
            server.url,
            self.token or environment.get("HEADRACE_TOKEN") or server.token,
            self.ca_file or environment.get("HEADRACE_CA_FILE") or server.ca_file,
        )

    def _elsewhere(self, environment: Mapping[str, str]) -> str | None:
        for option, value in (("--token", self.token), ("--ca-file", self.ca_file)):
            if value:
                raise UsageProblem(
                    f"{option} is for a server, and none is named: give --server, such as {DEFAULT_URL}."
                )
        if environment.get("HEADRACE_DATABASE"):
            return environment["HEADRACE_DATABASE"]
        context = contexts.in_use(environment)
        return None if context is None else context.database
