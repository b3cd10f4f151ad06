"""Resolves the addresses of a database. libpq would block the whole process during a name lookup."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

import anyio

from headrace.sources.postgres.errors import SourceUnavailable

Parameters = dict[str, str]
"""Connection parameters, by libpq's names."""


async def per_address(parameters: Mapping[str, str]) -> list[Parameters]:
    """Return the parameters once for each address to try, in order.

    A URL lists several hosts for a server that moves between them (with
    `target_session_attrs=primary`). They are tried one by one. A non-blocking libpq connection
    would wait for ever for the first host that is silent. `load_balance_hosts=random` shuffles them.

    Raises:
        SourceUnavailable: no host has an address.
    """
    hosts = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    ports = parameters.get("port", "").split(",")
    attempts: list[Parameters] = []
    unresolved: list[str] = []
    for index in range(max(len(hosts), len(addresses))):
        attempt = dict(parameters)
        _select(attempt, "host", hosts, index)
        _select(attempt, "hostaddr", addresses, index)
        _select(attempt, "port", ports, index if len(ports) > 1 else 0)
        name = attempt.get("host", "")
        if "hostaddr" in attempt or not name or name.startswith(("/", "@")):
            attempts.append(attempt)
            continue
        resolved = await _resolve(name)
        attempts += [{**attempt, "hostaddr": address} for address in resolved]
        if not resolved:
            unresolved.append(name)
    if not attempts:
        raise SourceUnavailable(
            f"The captured database can't be reached. There is no address for the host {' and '.join(unresolved)}."
        )
    return random.sample(attempts, len(attempts)) if parameters.get("load_balance_hosts") == "random" else attempts


def _select(parameters: Parameters, name: str, values: list[str], index: int) -> None:
    value = values[index] if index < len(values) else ""
    if value:
        parameters[name] = value
    else:
        parameters.pop(name, None)


async def _resolve(name: str) -> list[str]:
    try:
        addresses = await anyio.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def describe(parameters: Mapping[str, str]) -> str:
    """Return which database this is, for people, without secrets."""
    text = repr(parameters["dbname"]) if parameters.get("dbname") else "of its user's name"
    if host := parameters.get("host") or parameters.get("hostaddr"):
        text += f" at {host}" + (f":{parameters['port']}" if parameters.get("port") else "")
    return text + (f" as {parameters['user']}" if parameters.get("user") else "")
