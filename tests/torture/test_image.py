"""The steps of the container image work in an empty environment, as an ordinary user. It installs from the package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT, copied, instructions

pytestmark = pytest.mark.torture

USER = 10001
INSTALLED = "/opt/headrace"


def test_the_build_installs_a_command_that_serves(dsn: str, tmp_path: Path) -> None:
    source, installed = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    for name in copied():
        ignored = shutil.ignore_patterns("__pycache__")
        path = ROOT / name
        shutil.copytree(path, source / name, ignore=ignored) if path.is_dir() else shutil.copy(path, source / name)
    (build,) = (one.text for one in instructions() if one.name == "RUN" and one.stage == 1)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": str(tmp_path),
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "http", "SSL"))},
    }  # fmt: skip
    subprocess.run(
        ["sh", "-ec", build.replace(INSTALLED, str(installed))], cwd=source, env=environment, check=True, timeout=600
    )
    shutil.rmtree(source)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.owner() != "root" or directory.stat().st_mode & 0o001:
            continue
        pytest.skip(f"an ordinary user can't enter {directory}")
    user = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    command = str(installed / "bin" / "headrace")
    for words in (["--version"], ["serve", "--help"], ["plan", "--help"], ["apply", "--schema"]):
        subprocess.run([command, *words], cwd="/", env={"PATH": os.defpath}, check=True, timeout=60, **user)  # type: ignore[call-overload]
    missing = subprocess.run(
        [command, "pg", "start"], cwd="/", env={"PATH": os.defpath}, capture_output=True, check=False, **user
    )  # type: ignore[call-overload]
    assert missing.returncode != 0, "there is no embedded Postgres"
    migrated = subprocess.run([command, "migrate", "--check", "--database", dsn], cwd="/", check=False, timeout=60)
    assert migrated.returncode == 0
