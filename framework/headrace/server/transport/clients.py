"""The address of the client behind a request, by which callers without a token share what a server has for them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from headrace.server.http import Scope

FORWARDED_FOR = b"x-forwarded-for"
"""The header to which each proxy appends the address from which it has received the request."""

MAX_HOPS = 20
"""The most addresses of that header that are read, from the last one on."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Clients:
    """Finds the addresses of clients.

    Args:
        proxies: the addresses and networks of the proxies, see `Options.proxy_from`.
    """

    def __init__(self, proxies: Sequence[str]) -> None:
        self._proxies = tuple(ipaddress.ip_network(one) for one in proxies)

    def come_through_proxy(self, scope: Scope) -> bool:
        """Return whether a proxy has sent a request."""
        return bool(self._proxies) and self._is_proxy(_peer(scope))

    def address_of(self, scope: Scope) -> str:
        """Return what identifies the client of a request: its IPv4 address, or the first 64 bits of its IPv6 address, as
        one machine has all of these. Clients on a Unix socket count as one.

        Behind proxies it is the last address in `X-Forwarded-For` that is no proxy's. Those before it are the client's
        own claim.
        """
        address = _peer(scope)
        if self._proxies and self._is_proxy(address):
            address = self._forwarded(scope, address)
        return "" if address is None else _identity(address)

    def connected_from(self, client: tuple[str, int] | None) -> str | None:
        """Return the address by which connections are shared. None for a proxy's and loopback, which many clients have."""
        address = _parsed((client or ("",))[0])
        if address is None or address.is_loopback or self._is_proxy(address):
            return None
        return _identity(address)

    def _forwarded(self, scope: Scope, proxy: Address | None) -> Address | None:
        found = b",".join(value for name, value in scope["headers"] if name == FORWARDED_FOR).decode("latin-1")
        last = proxy
        for text in reversed(found.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            address = _parsed(text)
            if address is None:
                break
            last = address
            if not self._is_proxy(address):
                break
        return last

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)


def _identity(address: Address) -> str:
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def _peer(scope: Scope) -> Address | None:
    return _parsed((scope.get("client") or ("",))[0])


def _parsed(text: str) -> Address | None:
    """Return an address, which may have a port or a zone. None if the text is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
