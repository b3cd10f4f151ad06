"""The browser of the tests: Playwright with an installed Chromium, and axe-core from npm.

Where there is none of them, the tests are skipped with a line that says so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.versions import packages
from tests.versions.fetching import CACHE, make_directory

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage",
)  # fmt: skip

AXE = packages.Package(
    "axe-core", "4.14.1", "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)


def chromium() -> str | None:
    """Return the path of Chromium: that of `HEADRACE_CHROMIUM`, or else one that is installed."""
    return os.environ.get("HEADRACE_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str | None:
    """Return why nothing can be tested in a browser here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed. Install it with: pip install playwright"
    if chromium() is None:
        return "no Chromium is installed. On Debian: apt-get install chromium. Or name one in HEADRACE_CHROMIUM"
    return None


def require() -> None:
    """Skip the test if there is no browser."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"THE CONSOLE IS NOT TESTED IN A BROWSER: {reason}.", allow_module_level=True)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium with a fresh profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(OPTIONS))
        try:
            yield started
        finally:
            started.close()


def axe() -> str:
    """Return the script of axe-core, which is fetched once.

    Raises:
        NotFetchedError: it is not to be had here.
    """
    target = CACHE / f"axe-core-{AXE.version}.js"
    if not target.exists():
        make_directory(CACHE)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=CACHE) as aside:
            archive = packages.npm_pack(AXE, Path(aside))
            packages.check(AXE, archive)
            with tarfile.open(archive) as packed:
                member = packed.extractfile("package/axe.min.js")
                assert member is not None
                script = Path(aside, "axe.js")
                script.write_bytes(member.read())
            script.replace(target)
    return target.read_text(encoding="utf-8")
