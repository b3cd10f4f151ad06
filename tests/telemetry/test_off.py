"""Disabled telemetry costs nothing. OpenTelemetry is not imported, and no code of ours runs for a message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace import App, Message
from headrace.runtime.execution.single_executor import SingleExecutor
from tests.runtime.running import running

PROGRAM = """
import asyncio, sys
from headrace import App, Telemetry

app = App({dsn!r}, streams=["orders"], telemetry={telemetry})
seen = []

@app.consumer("orders")
async def ship(number: int) -> None:
    seen.append(number)

async def main() -> None:
    async with app.running():
        await app.publish("orders", "a", 7)
        await app.idle()

asyncio.run(main())
assert seen == [7]
print(*sorted(name for name in sys.modules if name.startswith(("opentelemetry", "headrace.telemetry."))))
"""


def loaded(dsn: str, telemetry: str) -> set[str]:
    """Return the telemetry modules that a program has loaded at its end."""
    program = PROGRAM.format(dsn=dsn, telemetry=telemetry)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


@pytest.mark.parametrize("telemetry", ["None", "False", "'off'", "Telemetry(traces=None, metrics=None)"])
def test_nothing_of_opentelemetry_is_imported_when_it_is_off(dsn: str, telemetry: str) -> None:
    assert loaded(dsn, telemetry) == {"headrace.telemetry.settings"}


def test_only_its_api_is_imported_for_what_the_program_has_set_up(dsn: str) -> None:
    found = loaded(dsn, "True")
    assert "opentelemetry.trace" in found
    assert not any(name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in found)


@pytest.mark.asyncio
async def test_an_actor_calls_the_handler_itself_when_it_is_off(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None: ...

    async with running(app):
        assert app._service is not None
        work = app._service.pipelines[0].actors._work
        assert isinstance(work, SingleExecutor)
        assert work._call is ship
