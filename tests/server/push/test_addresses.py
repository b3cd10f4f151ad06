"""Addresses that push may and may not send to."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError
from headrace.model.specs import Backoff
from headrace.server.push import PushConsumers
from headrace.server.push.addresses import AllowedAddresses
from tests.runtime.running import dead_letters
from tests.server.push.endpoints import Endpoint, running_push

NOTHING = AllowedAddresses()
NAT64 = ip_network("64:ff9b::/96")

SPECIAL_4 = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "0.0.0.0/8",
             "224.0.0.0/4", "240.0.0.0/4", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"]  # fmt: skip
PLATFORM_4 = ["169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "161.26.0.0/16",
              "166.8.0.0/14"]  # fmt: skip
PLATFORM_6 = ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fe80::a9fe:a9fe%eth0"]
SPECIAL_6 = [
    "::1/128",
    "::/128",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
    "2001:db8::/32",
    "2001::/32",
    "64:ff9b:1::/48",
    "100::/64",
]


def inside(networks: list[str]) -> st.SearchStrategy[str]:
    """Addresses of these networks, often their first and last ones."""

    def addresses(text: str) -> st.SearchStrategy[str]:
        network = ip_network(text)
        first, last = int(network.network_address), int(network.broadcast_address)
        make = IPv4Address if network.version == 4 else IPv6Address
        return st.one_of(st.sampled_from([first, last]), st.integers(first, last)).map(lambda value: str(make(value)))

    return st.sampled_from(networks).flatmap(addresses)


special_4 = inside(SPECIAL_4)
v4 = st.one_of(st.ip_addresses(v=4).map(str), special_4)

# IPv6 addresses that contain an IPv4 address, which a translator on the way may extract.
WRAPPINGS = {
    "mapped": lambda value: IPv6Address(0xFFFF << 32 | value),
    "compatible": IPv6Address,
    "6to4": lambda value: IPv6Address(0x2002 << 112 | value << 80 | 0x1234),
    "NAT64": lambda value: IPv6Address(0x64FF9B << 96 | value),
    "local NAT64": lambda value: IPv6Address(0x64FF9B0001 << 80 | value),
    "Teredo": lambda value: IPv6Address(0x20010000 << 96 | 0xCB007101 << 64 | (value ^ 0xFFFFFFFF)),
    "ISATAP": lambda value: IPv6Address(0x26064700 << 96 | 0x5EFE << 32 | value),
}
wrapped = st.tuples(st.sampled_from(sorted(WRAPPINGS)), special_4).map(
    lambda pair: str(WRAPPINGS[pair[0]](int(IPv4Address(pair[1]))))
)


@given(st.one_of(special_4, inside(SPECIAL_6), wrapped))
@example("169.254.169.254")
@example("::ffff:169.254.169.254")
@example("fe80::1%eth0")
def test_a_special_address_is_denied_in_whatever_form(address: str) -> None:
    why = NOTHING.refusal(address)
    assert why is not None
    assert "--push-allow" in why


@given(inside(PLATFORM_4), st.sampled_from([None, *sorted(WRAPPINGS)]))
@example("168.63.129.16", None)
def test_an_address_of_a_cloud_platform_must_be_allowed_by_itself(address: str, form: str | None) -> None:
    text = address if form is None else str(WRAPPINGS[form](int(IPv4Address(address))))
    for allow in ([], ["private", "loopback"], ["100.64.0.0/10", "169.254.0.0/16", "0.0.0.0/0", "192.0.0.0/24"]):
        assert AllowedAddresses(allow).refusal(text) is not None
    assert AllowedAddresses([f"{address}/32"]).refusal(address) is None


@pytest.mark.parametrize("address", PLATFORM_6)
def test_so_must_one_of_version_6(address: str) -> None:
    for allow in ([], ["private", "loopback"], ["fc00::/7", "fe80::/10", "::/0"]):
        assert AllowedAddresses(allow).refusal(address) is not None
    assert AllowedAddresses([address.partition("%")[0]]).refusal(address) is None


@given(st.one_of(v4, st.ip_addresses(v=6).map(str), inside(["2000::/3"])))
def test_nothing_is_open_that_the_standard_library_calls_special(address: str) -> None:
    known: IPv4Address | IPv6Address = ipaddress.ip_address(address)
    if isinstance(known, IPv6Address):  # the address that it leads to decides
        known = known.ipv4_mapped or (IPv4Address(int(known) & 0xFFFFFFFF) if known in NAT64 else known)
    if not known.is_global or known.is_multicast or known.is_reserved or known.is_loopback or known.is_link_local:
        assert NOTHING.refusal(address) is not None


@given(st.ip_addresses(v=4))
@example(IPv4Address("8.8.8.8"))
def test_a_public_address_is_open_also_behind_nat64_and_6to4(address: IPv4Address) -> None:
    assume(
        not any(
            address in ip_network(network) for network in [*SPECIAL_4, *PLATFORM_4, "192.0.0.0/24", "192.88.99.0/24"]
        )
    )
    for text in (str(address), *(str(WRAPPINGS[name](int(address))) for name in ("mapped", "6to4", "NAT64"))):
        assert NOTHING.refusal(text) is None


@pytest.mark.parametrize("address", ["2606:4700::6810:84e5", "2a00:1450:4001:80b::200e"])
def test_a_public_address_of_version_6_is_open(address: str) -> None:
    assert NOTHING.refusal(address) is None


@given(special_4, st.sampled_from(["mapped", "6to4", "NAT64"]))
def test_an_address_in_an_allowed_network_is_open_in_its_other_forms_too(address: str, form: str) -> None:
    allowed = AllowedAddresses([f"{address}/32"])
    assert allowed.refusal(address) is None
    assert allowed.refusal(str(WRAPPINGS[form](int(IPv4Address(address))))) is None


@pytest.mark.parametrize(
    ("allow", "opened", "closed"),
    [
        ("loopback", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"], ["10.0.0.1", "169.254.169.254", "fc00::1"]),
        ("private", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1"], ["127.0.0.1", "169.254.169.254", "100.64.0.1"]),
        ("10.1.0.0/16", ["10.1.255.255"], ["10.2.0.0", "127.0.0.1"]),
        ("fe80::/10", ["fe80::1"], ["::1"]),
    ],
)  # fmt: skip
def test_only_allowed_addresses_are_open(allow: str, opened: list[str], closed: list[str]) -> None:
    allowed = AllowedAddresses([allow])
    assert [address for address in opened if allowed.refusal(address)] == []
    assert [address for address in closed if not allowed.refusal(address)] == []


@pytest.mark.parametrize("text", ["", "localhost", "10.1.0.0/33", "10.1.2.3/16", "all"])
def test_an_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--push-allow .* is invalid"):
        PushConsumers([text])


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0.0.0.0"])
async def test_a_denied_address_gets_no_connection_however_it_is_written(
    dsn: str, endpoint: Endpoint, host: str
) -> None:
    url = endpoint.url.replace("127.0.0.1", host)
    async with running_push(dsn, allow=()) as push_app:
        await push_app.declare(url, max_deliver=1, backoff=Backoff.of(0))
        await push_app.app.publish("orders", "k", 1)
        await push_app.done()
        (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error is not None
    # The client refuses it without a DNS lookup.
    refused_as_no_address = "IPv4" in dead_letter.error
    assert "--push-allow" in dead_letter.error or refused_as_no_address
    assert endpoint.connections == 0


@pytest.mark.asyncio
async def test_a_name_is_judged_by_where_it_leads_when_it_is_connected_to(
    dsn: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protection against DNS rebinding.

    The owner of a name first resolves it to a public address, and to a local one when the connection is
    made.
    """
    lookups = []
    public = "93.184.216.34"

    def resolve(host: str, port: int, *_: object, **__: object) -> object:
        lookups.append(host)
        address = public if len(lookups) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    port = endpoint.url.split(":")[2].split("/")[0]
    resolving = socket.getaddrinfo

    def getaddrinfo(host: object, *args: object, **kwargs: object) -> object:
        name = host.decode() if isinstance(host, bytes) else host
        if name == "rebound.example":
            return resolve(name, int(port))
        return resolving(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    getaddrinfo("rebound.example")  # as an earlier check would
    async with running_push(dsn, allow=()) as push_app:
        await push_app.declare(f"http://rebound.example:{port}/", max_deliver=1)
        await push_app.app.publish("orders", "k", 1)
        await push_app.done()
        (dead_letter,) = await dead_letters(push_app.app, "ship")
    assert dead_letter.error == (
        "127.0.0.1 is a loopback address, to which this server may not push. Its operator can allow that with --push-allow loopback"
    )
    assert len(lookups) == 2
    assert endpoint.connections == 0


@pytest.mark.asyncio
async def test_no_proxy_of_the_environment_is_used(
    dsn: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with running_push(dsn) as push_app:
        await push_app.declare(endpoint.url)
        await push_app.app.publish("orders", "k", 1)
        await push_app.done()
    assert len(endpoint.requests) == 1
