"""The facts on which a figure depends: the machine, the versions, and the settings of the server."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import asyncpg

_SERVER_SETTINGS = (
    "synchronous_commit",
    "fsync",
    "data_checksums",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "logical_decoding_work_mem",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "max_connections",
    "autovacuum",
    "autovacuum_naptime",
    "default_toast_compression",
    "jit",
)
_PACKAGES = ("asyncpg", "psycopg", "msgspec", "uvloop", "anyio")


def machine() -> dict[str, Any]:
    """The hardware and the system. `load_before` is the load of other programs (1.0 is one busy core)."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """The versions of Python, Headrace and its dependencies."""
    return {
        "python": platform.python_version(),
        "headrace": _headrace(),
        **{package: found for package in _PACKAGES if (found := _installed(package))},
    }


async def server(url: str) -> dict[str, str]:
    """The server's version, the settings that matter, and its file system type if that can be read."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select name, current_setting(name) from pg_settings where name = any ($1)", list(_SERVER_SETTINGS)
        )
        found: dict[str, str] = {
            "version": (await connection.fetchval("select version()")).split(" on ")[0],
            **dict(sorted((row[0], row[1]) for row in rows)),
        }
        if (where := await _data_directory(connection)) and (kind := _file_system(where)):
            found["file_system"] = kind
        return found
    finally:
        await connection.close()


async def _data_directory(connection: asyncpg.Connection[Any]) -> str | None:
    try:
        directory: str = await connection.fetchval("show data_directory")
    except asyncpg.InsufficientPrivilegeError:
        return None
    return directory


def _file_system(path: str) -> str | None:
    """The type of the mount that holds a path. None if it can't be found, as for a server on another machine."""
    mounts = Path("/proc/mounts")
    if not mounts.exists() or not os.path.lexists(path):
        return None
    holds = [
        (len(point), kind)
        for _, point, kind, *_ in (line.split() for line in mounts.read_text().splitlines())
        if path == point or path.startswith(point.rstrip("/") + "/")
    ]
    return max(holds)[1] if holds else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _headrace() -> str:
    released = _installed("headrace") or "checkout"
    root = Path(__file__).resolve().parent.parent
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return f"{released} ({described.stdout.strip()})" if described.returncode == 0 else released
