"""Verifies the units of systemd, where systemd is installed: `python -m tests.deploy.units`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def main() -> int:
    """Verify copies of the units whose command exists. Returns the exit code."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("systemd-analyze is not installed, so the units were not verified.")
        return 0
    with TemporaryDirectory() as directory:
        paths = []
        for unit in sorted(UNITS.glob("*.service")):
            path = Path(directory, unit.name)
            path.write_text(unit.read_text().replace("/opt/headrace/bin/headrace", "/bin/true"))
            paths.append(str(path))
        return subprocess.run([analyze, "verify", *paths], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
