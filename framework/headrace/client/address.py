"""Address and token of a server."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

import msgspec

from headrace.model.database_url import is_url
from headrace.model.errors import ConfigurationError
from headrace.model.text.masking import HIDDEN, masked

DEFAULT_URL = "http://localhost:7376"

_PORTS = {"http": 80, "https": 443}


class Server(msgspec.Struct, frozen=True):
    """A server's address and token. Raises `ConfigurationError` if one of them is invalid.

    Args:
        url: http or https, a host, an optional port, and the path at which the server is mounted.
        token: sent with each request. None for no token.
        ca_file: a PEM file with the certificate authorities to trust for https, instead of the
            system's.
    """

    url: str = DEFAULT_URL
    token: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        parts = self._parts()
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigurationError(
                f"The server URL {masked(self.url)} is not valid. It may have a scheme, host, port and path only. Pass a token separately."
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise ConfigurationError(
                "The token is not valid. It consists of printable ASCII characters without spaces."
            )

    def __repr__(self) -> str:
        """Masks the token, since this text may be logged."""
        token = None if self.token is None else HIDDEN
        return f"Server(url={masked(self.url)!r}, token={token!r}, ca_file={self.ca_file!r})"

    @property
    def secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self._parts().scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = self._parts()
        assert parts.hostname is not None
        return parts.hostname, parts.port or _PORTS[parts.scheme]

    @property
    def root(self) -> str:
        """The path at which the server is mounted, without a trailing slash."""
        return self._parts().path.rstrip("/")

    def _parts(self) -> SplitResult:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or not self.url.isprintable() or " " in self.url or not parts.path.isascii():
            hint = " A database is given as --database or HEADRACE_DATABASE." if is_url(self.url) else ""
            raise ConfigurationError(
                f"The server URL {masked(self.url)!r} is not valid. Write it like {DEFAULT_URL} or"
                f" https://example.com/headrace.{hint}"
            )
        return parts
