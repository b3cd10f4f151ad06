"""Resolves the addresses of a database. libpq would block the whole process during a name lookup."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import anyio

from headrace.sources.postgres.errors import SourceUnavailable

Parameters = dict[str, str]
"""Connection parameters, by libpq's names."""


async def attempts(parameters: Mapping[str, str]) -> list[Parameters]:
    """Return the parameters once for each address to try, in order.

    A URL lists several hosts for a server that moves between them (with
    `target_session_attrs=primary`). They are tried one by one. A non-blocking libpq connection
    would wait for ever for the first host that is silent.

    Raises:
        SourceUnavailable: no host has an address.
    """
    hosts = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    ports = parameters.get("port", "").split(",")
    found: list[Parameters] = []
    nameless: list[str] = []
    for place in range(max(len(hosts), len(addresses))):
        one = dict(parameters)
        _pick(one, "host", hosts, place)
        _pick(one, "hostaddr", addresses, place)
        _pick(one, "port", ports, place if len(ports) > 1 else 0)
        name = one.get("host", "")
        if "hostaddr" in one or not name or name.startswith(("/", "@")):
            found.append(one)
            continue
        resolved = await _resolve(name)
        found += [{**one, "hostaddr": address} for address in resolved]
        if not resolved:
            nameless.append(name)
    if not found:
        raise SourceUnavailable(
            f"The captured database can't be reached: no address is known for {' and '.join(nameless)}."
        )
    return found


def _pick(parameters: Parameters, name: str, values: list[str], place: int) -> None:
    value = values[place] if place < len(values) else ""
    if value:
        parameters[name] = value
    else:
        parameters.pop(name, None)


async def _resolve(name: str) -> list[str]:
    try:
        found = await anyio.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def shown(parameters: Mapping[str, str]) -> str:
    """Return which database this is, for people, without secrets."""
    text = repr(parameters["dbname"]) if parameters.get("dbname") else "of its user's name"
    if host := parameters.get("host") or parameters.get("hostaddr"):
        text += f" at {host}" + (f":{parameters['port']}" if parameters.get("port") else "")
    return text + (f" as {parameters['user']}" if parameters.get("user") else "")
