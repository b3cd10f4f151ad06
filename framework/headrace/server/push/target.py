"""Where the requests of a push consumer go, and what all of them begin with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from yarl import URL


class Target(msgspec.Struct, frozen=True):
    """The URL of a push consumer, as it is connected to.

    Attributes:
        host: a name, in ASCII, or an IP address.
        port: the TCP port.
        tls: whether the connection is encrypted.
        head: the request line and the headers that all requests have, up to the last of these headers.
    """

    host: str
    port: int
    tls: bool
    head: bytes

    @classmethod
    def of(cls, address: str, headers: Mapping[str, str]) -> Target:
        """Return the target of requests to a URL. The headers were checked by `Push`, so none has a line break."""
        url = URL(address)
        assert url.raw_host is not None  # since `Push` takes no other URL
        assert url.port is not None
        lines = [f"POST {url.raw_path_qs} HTTP/1.1", f"host: {url.host_port_subcomponent}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "".join(f"{line}\r\n" for line in lines).encode()
        return cls(url.raw_host, url.port, url.scheme == "https", head)

    def request(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the bytes of one request.

        Args:
            headers: its own headers, in ASCII.
            body: its body.
        """
        own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (self.head, own.encode(), len(body), body)
