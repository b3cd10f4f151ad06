"""Small projects with an app and its tests, as users of the testing kit have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVICE = """
from headrace import App, Message

app = App(streams=["orders"])

@app.consumer("orders", backoff="1m")
async def ship(order: int, message: Message) -> None:
    if message.attempt < order:
        raise ValueError("not yet")
"""

CONFTEST = """
pytest_plugins = ["headrace.testing.plugin"]
"""

INI = """
[pytest]
filterwarnings = error
pythonpath = .
"""

WITH_ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")


def make(directory: Path) -> None:
    """Create a project that has an app and no tests yet."""
    for name, text in (("service.py", SERVICE), ("conftest.py", CONFTEST), ("pytest.ini", INI)):
        (directory / name).write_text(text)


def run(project: Path, *options: str) -> str:
    """Run its tests, which must pass. Their temporary files are below `temporary`. Returns the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={project / 'temporary'}"]
    done = subprocess.run([*command, *options], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
