"""TLS in front of a server that has none: certificates, and a proxy that answers libpq's request for TLS."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


class Certificates(NamedTuple):
    """Files in PEM: those of an authority, and of a server's certificate with its key."""

    authority: Path
    server: Path


def certificates(directory: Path, names: Sequence[str]) -> Certificates:
    """Make an authority and a certificate for a server with these names, which are valid for a day."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = _signed("Tests", [], authority_key, "Tests", authority_key)
    server = _signed("server", names, server_key, "Tests", authority_key)
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made = Certificates(directory / "authority.pem", directory / "server.pem")
    made.authority.write_bytes(root.public_bytes(pem))
    made.server.write_bytes(key + server.public_bytes(pem))
    return made


def _signed(name: str, names: Sequence[str], key: Any, issuer: str, by: Any) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    subject, issued_by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer))
    usage = x509.KeyUsage(True, False, False, False, False, not names, not names, False, False)
    builder = (
        x509.CertificateBuilder(issued_by, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    return builder.sign(by, hashes.SHA256())


@asynccontextmanager
async def tls_in_front(dsn: str, certificates: Certificates) -> AsyncIterator[int]:
    """The port of a proxy on 127.0.0.1 that offers TLS in front of the server of a database URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server)
    links: set[asyncio.Task[Any]] = set()

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            links.add(task)
        with suppress(OSError, EOFError):
            first = await reader.readexactly(8)
            if first == _REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                first = b""
            server_reader, server_writer = await _open(dsn)
            server_writer.write(first)
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))

    server = await asyncio.start_server(link, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)


async def _open(dsn: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    if parts.hostname:
        return await asyncio.open_connection(unquote(parts.hostname), parts.port or 5432)
    path = f"{query['host'][-1]}/.s.PGSQL.{query.get('port', ['5432'])[-1]}"
    return await asyncio.open_unix_connection(path)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
