"""Options of a server. The command line of `headrace serve`, its environment variables and the table in docs/server.md
follow from this description.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.settings import Setting, check
from headrace.store.database.references import is_reference

_OWNER = "the server"
_MOST = 1_000_000
"""The largest number of requests or connections. Linux lets a process open about as many files."""
_LARGEST = 2**60
"""The largest size in bytes."""
_LONGEST = 86_400.0
"""The longest time in seconds."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and behavior of a server, each process of it. Sizes are in bytes, times in seconds.

    The limits of connections apply to `headrace serve`, which handles the connections itself.

    Args:
        push_allow: Where push consumers may send, and captured databases may be, besides public addresses: a
            network such as 10.0.0.0/8, `private`, or `loopback`.
        allowed_hosts: A name or address of the server, besides loopback, that requests may name in their Host
            header while no token exists.
        transforms: A module whose functions sources may name as their transform over HTTP. A package allows its
            submodules.
        database_references: A reference that the HTTP API may name as the URL of a further database, such as
            env:EU_DATABASE. With a `*` at its end it stands for all that begin like it.
        capture: Whether this server captures the tables of sources that no other process captures.
        session_lifetime: The time after which a session of the console ends, if its token doesn't expire
            earlier.
        proxy_user_header: The header in which a proxy in front of the server gives the name of the user that it
            has authenticated, such as X-Forwarded-User.
        proxy_from: An address or a network of the proxies in front of the server, such as 127.0.0.1 or
            10.0.0.0/8. Their `proxy_user_header` and the last address in their `X-Forwarded-For` are believed.
        proxy_token: The name of the access token with whose scopes the users of the proxies act.
        trace_url: Where your tracing system shows a trace, with {trace_id} in place of its id, such as
            https://traces.example/trace/{trace_id}. The console links to it.
        max_requests: The most concurrent requests, without those that wait for messages. Others get 503.
        max_requests_per_token: The most concurrent requests of one access token. Others get 429. At most
            `max_requests`.
        max_pipelined: The most requests that a client may send ahead of their responses. Others get 400.
        max_managed: The most concurrent requests of the management API. No token has more than half of these
            places, free places go round the tokens, and others wait. While there are no tokens, the same goes for
            addresses.
        max_managed_waiting: The most requests of one token that wait for a place of the management API. Others
            get 503.
        managed_timeout: The longest wait for such a place. After that the request gets 503.
        max_judging: The most connections to the database that may examine many messages at the same time.
            Others wait. At most as many as there are.
        data_connections: The most connections to each further database.
        max_data_connections: The most connections to all further databases together. Databases beyond that are
            not opened.
        max_body: The largest body of a request. A larger one gets 413. At most `max_held`.
        max_managed_body: The largest body of a request of the management API. Decoding one holds up all other
            requests for 10 ms per MB.
        max_held: The largest total size of the bodies of concurrent requests. Others get 503.
        max_cached: The largest total size of the messages that are kept in memory for other consumers, as JSON. Python
            needs up to three times as much.
        max_head: The largest size of request line and headers. Larger ones get 431.
        max_headers: The most headers of a request. More get 431.
        max_connections: The most concurrent connections of clients. Others get 503 and are closed.
        head_timeout: The longest time that a TLS handshake, or request line and headers may take, from their
            first byte or the connection's start.
        body_timeout: The longest wait for the next piece of a body. After that the request gets 408.
        min_body_rate: The lowest average rate of a body in bytes per second, once it has taken twice as long as
            `body_timeout`.
        idle_timeout: The time without a request after which a connection is closed.
        write_timeout: The longest time without progress of a client that reads a response. After that it is
            disconnected.
        body_check_interval: Internal, for tests. The interval at which incoming bodies are checked for their timeout.
        discard_time: Internal, for tests. How long the rest of a refused request is read and discarded. If the
            connection were closed immediately, the response would be lost.
        push_refresh_interval: Internal, for tests. The interval of the look-up of push consumers, since other
            servers create, change and delete them, too.

    Raises:
        ConfigurationError: a value is invalid, or contradicts another one.
    """

    # --- what the server may do

    push_allow: Annotated[tuple[str, ...], Setting(otherwise="public addresses only")] = ()
    allowed_hosts: Annotated[tuple[str, ...], Setting(otherwise="loopback only")] = ()
    transforms: Annotated[tuple[str, ...], Setting(otherwise="none")] = ()
    database_references: Annotated[tuple[str, ...], Setting(otherwise="none")] = ()
    capture: Annotated[bool, Setting()] = True

    session_lifetime: Annotated[float, Setting(unit="seconds", limits=(1, 365 * _LONGEST))] = 43_200.0
    proxy_user_header: Annotated[str | None, Setting(otherwise="none")] = None
    proxy_from: Annotated[tuple[str, ...], Setting(otherwise="none")] = ()
    proxy_token: Annotated[str | None, Setting(otherwise="none")] = None

    trace_url: Annotated[str | None, Setting(otherwise="no links")] = None

    # --- requests

    max_requests: Annotated[int, Setting(limits=(1, _MOST))] = 1000
    max_requests_per_token: Annotated[
        int | None, Setting(limits=(1, _MOST), otherwise="a quarter of `max_requests`")
    ] = None
    max_pipelined: Annotated[int, Setting(limits=(1, 10_000))] = 100
    max_managed: Annotated[int, Setting(limits=(1, 10_000))] = 4
    max_managed_waiting: Annotated[int, Setting(limits=(1, _MOST))] = 100
    managed_timeout: Annotated[float, Setting(unit="seconds", limits=(0, _LONGEST), exclusive=True)] = 30.0
    max_judging: Annotated[int | None, Setting(limits=(1, 1000), otherwise="a fifth of the connections")] = None

    data_connections: Annotated[int, Setting(limits=(1, 1000))] = 10
    max_data_connections: Annotated[int, Setting(limits=(1, _MOST))] = 100

    # --- memory

    max_body: Annotated[int, Setting(unit="bytes", limits=(1, _LARGEST))] = 10_000_000
    max_managed_body: Annotated[int, Setting(unit="bytes", limits=(1, _LARGEST))] = 1_000_000
    max_held: Annotated[int, Setting(unit="bytes", limits=(1, _LARGEST))] = 256_000_000
    max_cached: Annotated[int, Setting(unit="bytes", limits=(1, _LARGEST))] = 32_000_000
    max_head: Annotated[int, Setting(unit="bytes", limits=(256, 16_000_000))] = 32_768
    max_headers: Annotated[int, Setting(limits=(1, 10_000))] = 100

    # --- connections and slow clients

    max_connections: Annotated[int, Setting(limits=(1, _MOST))] = 10_000
    head_timeout: Annotated[float, Setting(unit="seconds", limits=(0, _LONGEST), exclusive=True)] = 10.0
    body_timeout: Annotated[float, Setting(unit="seconds", limits=(0, _LONGEST), exclusive=True)] = 10.0
    min_body_rate: Annotated[int, Setting(limits=(1, _LARGEST))] = 1000
    idle_timeout: Annotated[float, Setting(unit="seconds", limits=(0, _LONGEST), exclusive=True)] = 75.0
    write_timeout: Annotated[float, Setting(unit="seconds", limits=(0, _LONGEST), exclusive=True)] = 30.0

    body_check_interval: float = 0.5
    discard_time: float = 2.0
    push_refresh_interval: float = 2.0

    def __post_init__(self) -> None:
        for name in ("push_allow", "allowed_hosts", "transforms", "database_references", "proxy_from"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value):
                raise ConfigurationError(
                    f"`{name}` of {_OWNER} must be a sequence of texts, not {value!r:.60}.", field=name
                )
        check(self, _OWNER)
        self._check_proxies()
        self._check_trace_url()
        for reference in self.database_references:
            if not is_reference(reference.removesuffix("*")):
                raise ConfigurationError(
                    f"`database_references` of {_OWNER} has {reference!r:.80}, which allows no reference. Give env:NAME or file:/path,"
                    " perhaps with a `*` at the end, such as env:EU_*.",
                    field="database_references",
                )
        if self.max_body > self.max_held:
            raise ConfigurationError(
                f"`max_body` of {_OWNER} is {self.max_body:,} bytes, and `max_held` is {self.max_held:,}, so the largest body would"
                " never be accepted. Raise `max_held`, or lower `max_body`.",
                field="max_held",
            )
        if self.max_requests_per_token is not None and self.max_requests_per_token > self.max_requests:
            raise ConfigurationError(
                f"`max_requests_per_token` of {_OWNER} is {self.max_requests_per_token:,}, and `max_requests` is"
                f" {self.max_requests:,}. One token can't have more than all together. Lower the first, or raise the second.",
                field="max_requests_per_token",
            )

        if self.data_connections > self.max_data_connections:
            raise ConfigurationError(
                f"`data_connections` of {_OWNER} is {self.data_connections:,}, and `max_data_connections` is"
                f" {self.max_data_connections:,}, so no database could be opened. Lower the first, or raise the second.",
                field="max_data_connections",
            )

    def _check_proxies(self) -> None:
        given = [name for name in ("proxy_user_header", "proxy_token") if getattr(self, name)]
        if len(given) == 1 or (given and not self.proxy_from):
            raise ConfigurationError(
                f"{_OWNER.capitalize()} has `{given[0]}`, but `proxy_user_header`, `proxy_token` and `proxy_from` belong together. Give"
                " all three, or `proxy_from` alone.",
                field=given[0],
            )
        if self.proxy_user_header is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.proxy_user_header):
            raise ConfigurationError(
                f"`proxy_user_header` of {_OWNER} is {self.proxy_user_header!r:.80}, which is not the name of a header. Give one such as"
                " X-Forwarded-User.",
                field="proxy_user_header",
            )
        for network in self.proxy_from:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ConfigurationError(
                    f"`proxy_from` of {_OWNER} has {network!r:.80}, which is neither an address nor a network. Give one such as"
                    " 127.0.0.1 or 10.0.0.0/8.",
                    field="proxy_from",
                ) from error

    def _check_trace_url(self) -> None:
        url = self.trace_url
        if url is not None and ("{trace_id}" not in url or not re.fullmatch(r"https?://[^\s/]\S*", url)):
            raise ConfigurationError(
                f"`trace_url` of {_OWNER} is {url!r:.80}, which is not an http or https URL with {{trace_id}} in it. Give one such as"
                " https://traces.example/trace/{trace_id}.",
                field="trace_url",
            )

    @property
    def requests_per_token(self) -> int:
        """The most concurrent requests of one access token."""
        return max(self.max_requests // 4, 1) if self.max_requests_per_token is None else self.max_requests_per_token

    @property
    def connections_per_address(self) -> int:
        """The most concurrent connections from one address that is neither loopback nor a proxy's."""
        return max(self.max_connections // 2, 1)

    @property
    def requests_of_strangers(self) -> int:
        """The most concurrent requests of all callers that the server doesn't know: those of webhooks and sign-ins, and those
        whose token is being looked up."""
        return max(self.max_requests // 4, 1)

    @property
    def requests_per_stranger(self) -> int:
        """The most of them from one address."""
        return max(self.requests_of_strangers // 4, 1)

    @property
    def held_per_token(self) -> int:
        """The largest total size of the bodies of one access token's concurrent requests, in bytes."""
        return max(self.max_held // 4, self.max_body)

    @property
    def held_for_strangers(self) -> int:
        """The largest total size of the bodies of all callers that the server doesn't know, in bytes."""
        return self.held_per_token

    @property
    def held_per_stranger(self) -> int:
        """The largest total size of those from one address, in bytes."""
        return max(self.held_for_strangers // 4, self.max_body)
