"""Check of the addresses that push consumers may reach. It prevents server-side request forgery.

Public addresses are allowed, and others that the server's operator allows. Users of the API create
consumers, and a server stands inside a network. If it sent to any URL, every user could reach what
only that network should: other services, databases, the cloud's metadata at 169.254.169.254. The
check applies to the address that is connected to, since the owner of a name can change its
addresses at any time.

The kinds follow the registries of special-purpose addresses,
https://www.iana.org/assignments/iana-ipv4-special-registry and -ipv6-. Clouds have further addresses at which
their machines get credentials or configuration. Some of them look public, and some are in networks that an
operator allows for other reasons, so each of them must be allowed by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headrace.model.errors import ConfigurationError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    ("link-local", ("169.254.0.0/16", "fe80::/10", "fec0::/10")),
    ("carrier's", ("100.64.0.0/10",)),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    (
        "reserved",
        ("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
         "2001::/23", "2001:db8::/32", "3fff::/20"),
    ),
)  # fmt: skip
_PLATFORM = tuple(
    ip_network(text)
    for text in (
        "169.254.169.254/32",  # the metadata of most clouds
        "169.254.170.2/32", "169.254.170.23/32", "fd00:ec2::23/128",  # AWS: credentials of containers
        "fd00:ec2::254/128",  # AWS
        "168.63.129.16/32",  # Azure
        "fd20:ce::254/128",  # Google
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32", "fd00:c1::a9fe:a9fe/128",  # Oracle
        "169.254.42.42/32", "fd00:42::42/128",  # Scaleway
        "169.254.0.23/32",  # Tencent
        "fe80::a9fe:a9fe/128",  # OpenStack
        "161.26.0.0/16", "166.8.0.0/14",  # IBM: services inside its network
    )
)  # fmt: skip
"""Addresses of cloud platforms. Their kind comes before the others."""

_METADATA = "cloud platform's"

_SPECIAL = tuple((kind, ip_network(text)) for kind, texts in _KINDS for text in texts)
_BY_NAME = {kind: tuple(map(ip_network, texts)) for kind, texts in _KINDS if kind in ("loopback", "private")}

_PUBLIC_6 = IPv6Network("2000::/3")
"""The only part of IPv6 that has been allocated."""

_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


class AllowedAddresses:
    """The addresses that may be connected to.

    Args:
        networks: allowed addresses that are not public: networks such as "10.1.0.0/16", or "private"
            or "loopback".

    Raises:
        ConfigurationError: `networks` has anything else.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(network for text in networks for network in _networks(text))

    def refusal(self, text: str, verb: str = "push") -> str | None:
        """Return why an address may not be connected to, in one sentence with the option that
        would allow it. None if it is allowed. `verb` says what the server would do."""
        for address in forms(ip_address(text)):
            kind = special(address)
            if kind is not None and not self._allows(address, kind):
                allow = kind if kind in _BY_NAME else f"{address}/{address.max_prefixlen}"
                return (
                    f"{text} is a {kind} address, to which this server may not {verb}. Its operator can allow that with"
                    f" --push-allow {allow}"
                )
        return None

    def _allows(self, address: Address, kind: str) -> bool:
        """Whether the operator allows an address that is not public. One of a cloud platform must be given by itself."""
        networks = (one for one in self._networks if kind != _METADATA or one.num_addresses == 1)
        return any(address in network for network in networks)


def special(address: Address) -> str | None:
    """Return the kind of a special address. None for a public one."""
    if any(address in network for network in _PLATFORM):
        return _METADATA
    for kind, network in _SPECIAL:
        if address in network:
            return kind
    if isinstance(address, IPv6Address) and address not in _PUBLIC_6 and address not in _NAT64:
        return "reserved"
    return None


def forms(address: Address) -> list[Address]:
    """Return the addresses to check: the address, and each IPv4 address that a gateway may translate it to."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    value = int(address)
    low = IPv4Address(value & 0xFFFF_FFFF)
    found: list[Address] = [IPv6Address(value)]  # without the zone of a link-local address
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address in _NAT64 or (value >> 32) & 0xFFFF_FFFF in _ISATAP:
        found.append(low)
    return found


def _networks(text: str) -> tuple[Network, ...]:
    if text in _BY_NAME:
        return _BY_NAME[text]
    try:
        return (ip_network(text),)
    except ValueError:
        raise ConfigurationError(
            f"--push-allow {text!r} is invalid. Give a network such as 10.1.0.0/16, private, or loopback."
        ) from None
