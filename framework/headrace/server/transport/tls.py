"""TLS for `headrace serve`: a certificate and its key. The files are read again when they
change, as they do every few weeks."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import anyio

from headrace.model.errors import ConfigurationError
from headrace.model.log import Log

log = Log("headrace")

CHECK_INTERVAL = 60.0
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
        self._loaded = self._file_versions()

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
                f"{self._certificate} and {self._key} are not a certificate and its unencrypted private key in PEM: {error.reason or error}."
            ) from error

    def _file_versions(self) -> tuple[tuple[int, int], ...]:
        stats = [os.stat(path) for path in (self._certificate, self._key)]
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def reload(self) -> bool:
        """Read the files if they have changed, for new connections. Invalid files are logged, and
        the old certificate stays.

        Returns:
            Whether there is a new certificate.
        """
        try:
            current = self._file_versions()
            if current == self._loaded:
                return False
            self._loaded = current
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # tried first, so that no half of a pair gets into use
            self._load(self.context)
        except (OSError, ConfigurationError) as error:
            log.warning("new certificate is invalid", error=error, hint="the old certificate stays in use")
            return False
        log.info("certificate reloaded", file=str(self._certificate))
        return True

    async def keep_current(self) -> None:
        """Check the files regularly, until cancelled."""
        while True:
            await anyio.sleep(CHECK_INTERVAL)
            await anyio.to_thread.run_sync(self.reload)


def _no_password() -> str:
    """Return an empty password, so that OpenSSL doesn't ask for one on the terminal."""
    return ""
