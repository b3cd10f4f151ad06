"""TLS for `headrace serve`: a certificate and its key. The files are read again when they
change, as they do every few weeks."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import anyio

from headrace.model.errors import ConfigurationError

logger = logging.getLogger("headrace")

EVERY = 60.0
"""Interval in seconds at which the files are checked."""


class Certificate:
    """A certificate and its private key in PEM.

    Args:
        certificate: a file with the certificate, followed by the intermediate certificates.
        key: a file with the unencrypted key. None if it is in the same file.

    Attributes:
        context: for connections. It stays the same when the files are read again.

    Raises:
        ConfigurationError: a file can't be read, or the two don't belong together.
    """

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key or certificate
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._load(self.context)
        self._seen = self._look()

    def _load(self, context: ssl.SSLContext) -> None:
        for option, path in (("--tls-cert", self._certificate), ("--tls-key", self._key)):
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigurationError(f"{option} {path} can't be read: {error.strerror}.") from error
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{self._certificate} and {self._key} are not a certificate and its private key in PEM, unencrypted: {error.reason or error}."
            ) from error

    def _look(self) -> tuple[tuple[int, int], ...]:
        found = [os.stat(path) for path in (self._certificate, self._key)]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def renew(self) -> bool:
        """Read the files if they have changed, for new connections. Invalid files are logged, and
        the old certificate stays.

        Returns:
            Whether there is a new certificate.
        """
        try:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # tried first, so that no half of a pair gets into use
            self._load(self.context)
        except (OSError, ConfigurationError) as error:
            logger.warning("the certificate has changed, and the new one can't be used: %s", error)
            return False
        logger.info("the certificate has changed: new connections get the new one")
        return True

    async def keep(self) -> None:
        """Check the files regularly, until cancelled."""
        while True:
            await anyio.sleep(EVERY)
            await anyio.to_thread.run_sync(self.renew)


def _no_password() -> str:
    """Return an empty password, so that OpenSSL doesn't ask for one on the terminal."""
    return ""
