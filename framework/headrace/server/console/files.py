"""The static files of the console, read once, with what a browser needs to keep them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from headrace.server.console.bundle import bundle
from headrace.server.console.descriptions import described

ENTRY = "shell.js"
"""The module with which the console begins."""

SCRIPT = "console.js"
"""The bundle of all modules, which is served instead of them."""

DESCRIBED = "shared/described.js"
"""The module with what the server describes."""

PLAIN = ("early.js", "vendor/uplot.js")
"""The scripts that are no modules. They are served as they are."""

TYPES: Mapping[str, bytes] = {
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
    "txt": b"text/plain; charset=utf-8",
}
"""The content types of files that are served, by their suffixes. Others, such as the notes beside the vendored files,
are not served."""

_COMPRESSED_FROM = 600
"""Bytes from which a file is worth compressing. Smaller ones fit one packet."""


class StaticFile(msgspec.Struct, frozen=True):
    """A file as it is sent.

    Attributes:
        content: its bytes.
        compressed: the same with gzip, or None if that is not worth it.
        content_type: its type.
        etag: its digest, quoted as in the header.
    """

    content: bytes
    compressed: bytes | None
    content_type: bytes
    etag: bytes


class StaticFiles(msgspec.Struct, frozen=True):
    """All files by their paths, and the version that changes when any of them does."""

    by_path: Mapping[str, StaticFile]
    version: str


@cache
def static_files() -> StaticFiles:
    """Return the files. The first call reads and compresses them, which takes some hundredths of a second."""
    read = dict(_walk(files(__package__) / "static", ""))
    modules = {path: read.pop(path).decode() for path in list(read) if path.endswith(".js") and path not in PLAIN}
    modules[DESCRIBED] = described(modules[DESCRIBED])
    read[SCRIPT] = bundle(modules, ENTRY).encode()
    found = {path: _static_file(path, content) for path, content in sorted(read.items())}
    together = hashlib.sha256()
    for path, file in found.items():
        together.update(f"{path}\0".encode() + file.etag)
    return StaticFiles(by_path=found, version=together.hexdigest()[:12])


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in TYPES:
            found.append((f"{prefix}{entry.name}", entry.read_bytes()))
    return found


def _suffix(path: str) -> str:
    return path.rpartition(".")[2]


def _static_file(path: str, content: bytes) -> StaticFile:
    compressed = gzip.compress(content, 9, mtime=0) if len(content) >= _COMPRESSED_FROM else None
    etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
    return StaticFile(content=content, compressed=compressed, content_type=TYPES[_suffix(path)], etag=etag)
