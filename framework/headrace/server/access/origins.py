"""Protection against web pages while no token protects the server.

A browser lets any page send requests to any address that its user can reach, such as this server on
loopback, and a page whose name resolves to that address may read the answers (DNS rebinding). A
page has no token, so tokens are the full protection. Without tokens, the headers that browsers set
and pages can't change show which requests a page of another site has caused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from headrace.model.errors import ConfigurationError
from headrace.server.errors import Problem
from headrace.server.http import Scope

_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)
_PLAIN = frozenset((
    b"host", b"content-type", b"content-length", b"authorization", b"user-agent", b"accept", b"accept-encoding", b"connection",
))  # fmt: skip
_MAX_KNOWN = 100
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_BROWSER = b"mozilla/"
_FORM = "application/x-www-form-urlencoded"
_SHOWN = 80

_CLOSE = "Create a token with `headrace token add`, since a server with tokens takes requests from everywhere"

_Headers = Iterable[tuple[bytes, bytes]]


class OriginPolicy:
    """Finds the requests that a web page of another site may have caused.

    Args:
        allowed_hosts: names and addresses, without ports, under which clients reach the server in
            addition to loopback.

    Raises:
        ConfigurationError: a host is invalid.
    """

    def __init__(self, allowed_hosts: Iterable[str] = ()) -> None:
        self._hosts = frozenset(("localhost", *map(_configured, allowed_hosts)))
        self._known: set[bytes | None] = set()  # Host headers that are allowed, whatever the address of the server is

    def violation(self, scope: Scope) -> Problem | None:
        """Return why a request must be refused while the server is open, or None."""
        if self.is_plain(scope["headers"]):
            return None
        signs = _Signs(scope["headers"])
        if len(signs.hosts) == 1 and len(self._known) < _MAX_KNOWN and self._allows(signs.hosts[0], {}):
            self._known.update(value for name, value in scope["headers"] if name == b"host")
        return self._foreign_host(signs.hosts, scope) or signs.cross_site(scope) or signs.simple_body(scope)

    def is_plain(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return whether a request has no sign of a browser, and a host that is known to be allowed, which is nearly
        always so. It then has no violation, nor has `consuming_get` one, now or later."""
        found = dict(headers)
        return (
            len(found) == len(headers)
            and found.keys() <= _PLAIN
            and found.get(b"host") in self._known
            and found.get(b"content-type", b"application/json") == b"application/json"
            and found.get(b"user-agent", b"")[: len(_BROWSER)].lower() != _BROWSER
        )

    def cross_site(self, scope: Scope) -> Problem | None:
        """Return why a request must be refused that no token can protect, or None."""
        return _Signs(scope["headers"]).cross_site(scope)

    def foreign_host(self, scope: Scope) -> Problem | None:
        """Return why the host of a request must be refused while the server is open, or None."""
        return self._foreign_host(_Signs(scope["headers"]).hosts, scope)

    def _foreign_host(self, hosts: list[str], scope: Scope) -> Problem | None:
        if not hosts and scope.get("http_version") == "1.0":
            return None  # no browser sends such a request
        for host in hosts or [""]:
            if not self._allows(host, scope):
                return Problem(
                    403,
                    "host_not_allowed",
                    f"The request is for the host {host[:_SHOWN]!r}, which this server does not know, and no token protects it."
                    f" {_CLOSE}, or start it with `--allowed-host` and this name.",
                )
        return None

    def _allows(self, host: str, scope: Scope) -> bool:
        found = _AUTHORITY.fullmatch(host)
        if found is None:
            return False
        name = found[1] or found[2]
        if name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # No name resolves to these, so DNS rebinding can't produce them. The second one is the address
        # that the client has connected to, as probes do that know a server by its address only.
        return address.is_loopback or str(address) in self._hosts or str(address) == (scope.get("server") or ("",))[0]


class _Signs:
    """The sender of a request, as its headers describe it."""

    __slots__ = ("body", "hosts", "mode", "mozilla", "origins", "sites", "types")

    def __init__(self, headers: _Headers) -> None:
        self.hosts: list[str] = []
        self.origins: list[str] = []
        self.sites: list[str] = []
        self.types: list[str] = []
        self.mode = ""
        self.mozilla = self.body = False
        for name, value in headers:
            if name == b"host":
                self.hosts.append(_text(value))
            elif name == b"origin":
                self.origins.append(_text(value))
            elif name == b"sec-fetch-site":
                self.sites.append(_text(value))
            elif name == b"sec-fetch-mode":
                self.mode = _text(value)
            elif name == b"content-type":
                self.types.append(_text(value.partition(b";")[0]))
            elif name == b"user-agent":
                self.mozilla = value[: len(_BROWSER)].lower() == _BROWSER
            elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
                self.body = True

    @property
    def browser(self) -> bool:
        """Whether a browser may have sent the request. Some browsers leave out one or the other sign."""
        return self.mozilla or bool(self.origins or self.sites)

    def cross_site(self, scope: Scope) -> Problem | None:
        schemes = ("https",) if scope.get("scheme") == "https" else ("http", "https")
        own = {f"{scheme}://{host}" for host in self.hosts for scheme in schemes}
        for origin in self.origins:
            if origin not in own:
                return _cross_site(f"the origin {origin[:_SHOWN]!r}")
        for site in self.sites:
            if site not in ("same-origin", "none"):
                return _cross_site(f"another origin (Sec-Fetch-Site: {site[:_SHOWN]})")
        return None

    def simple_body(self, scope: Scope) -> Problem | None:
        """Return why the body of a change must be refused, or None.

        A form can send text, multipart and URL-encoded bodies to another site without asking it
        first. curl sends URL-encoded ones by default, so these are refused from browsers only.
        """
        if scope["method"] in _SAFE_METHODS:
            return None
        for kind in self.types:
            refused = not _is_json(kind) if self.browser else kind.startswith(("text/", "multipart/"))
            if refused:
                return _unsupported(kind)
        if self.browser and self.body and not self.types:
            return _unsupported("")
        return None


def consuming_get(scope: Scope) -> Problem | None:
    """Return why a GET request that leases messages must be refused while the server is open, or None.

    A browser sends GET requests for links and images, also for those in a page's content. Only a
    script of the same origin can be meant.
    """
    if scope["method"] != "GET":
        return None
    signs = _Signs(scope["headers"])
    if not signs.browser or (signs.sites == ["same-origin"] and signs.mode in ("cors", "same-origin")):
        return None
    return Problem(
        403,
        "cross_origin",
        "A browser has sent this GET request, which would receive messages, and no token protects the server. Receive by"
        f" POST. {_CLOSE}.",
    )


def _cross_site(where: str) -> Problem:
    return Problem(
        403,
        "cross_origin",
        f"A web page of {where} has caused this request, and no token protects the server. {_CLOSE}, or serve the page from"
        " the same origin as the API.",
    )


def _unsupported(kind: str) -> Problem:
    given = f"The content type {kind[:_SHOWN]!r} is" if kind else "A body without a content type is"
    return Problem(
        415, "unsupported_media_type", f"{given} not accepted here. Send the header `Content-Type: application/json`."
    )


def _is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _configured(host: str) -> str:
    name = host.strip().lower()
    try:
        bare = name[1:-1] if name[:1] == "[" and name[-1:] == "]" else name
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    found = _AUTHORITY.fullmatch(name)
    if found is None or found[2] != name:
        raise ConfigurationError(
            f"The allowed host {host!r} is not valid. Give a name or an address without scheme and port, such as headrace.example.com."
        )
    return name
