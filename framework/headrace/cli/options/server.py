"""Options of `headrace serve`, made of the description of the server's options."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from headrace.app.settings import SERVE_PREFIX
from headrace.cli.options.from_settings import Options, Special, from_settings
from headrace.model.log import Log
from headrace.server import options as server

log = Log("headrace")

_BEHAVIOR = (
    "push_allow",
    "allowed_hosts",
    "transforms",
    "database_references",
    "capture",
    "session_lifetime",
    "proxy_user_header",
    "proxy_from",
    "proxy_token",
    "trace_url",
)


@from_settings(server.Options, only=_BEHAVIOR, environment=SERVE_PREFIX, allowed_hosts=Special("--allowed-host"))
class ServerBehavior(Options):
    """The permissions of the server, as options."""


@from_settings(server.Options, omit=_BEHAVIOR, environment=SERVE_PREFIX, heading="Limits of each process")
class ServerLimits(Options):
    """The limits of the server, as options."""


def server_options(behavior: ServerBehavior, limits: ServerLimits, *, host: str) -> server.Options:
    """Return the options of the server. Clients may name the address that it listens on.

    Raises:
        UsageError, ConfigurationError: an option is invalid, or contradicts another one.
    """
    from headrace.server.access.origins import OriginPolicy
    from headrace.server.access.transform_modules import TransformModules
    from headrace.server.push.addresses import AllowedAddresses

    given = behavior.given() | limits.given()
    options = server.Options(**given)
    AllowedAddresses(options.push_allow)  # raises immediately if a network is invalid
    OriginPolicy(options.allowed_hosts)  # or a host
    TransformModules(options.transforms)  # or a module
    hosts = (*options.allowed_hosts, host.partition("%")[0])
    return server.Options(**given | {"allowed_hosts": tuple(dict.fromkeys(hosts))})


def words_of(options: server.Options) -> Sequence[str]:
    """Return the words of a command line that gives a server process the same options."""
    return (*ServerBehavior.as_words(options), *ServerLimits.as_words(options))


def log_unknown_variables() -> None:
    """Log the variables that begin like those of the server, and set nothing."""
    known = [*ServerBehavior.variables(), *ServerLimits.variables()]
    for name in sorted(os.environ):
        if name.startswith(SERVE_PREFIX) and name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {similar[0]}?" if similar else None
            log.warning("unknown variable in the environment", variable=name, hint=hint)
