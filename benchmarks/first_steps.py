"""How long a newcomer takes to the first message of an own service: with Headrace, FastStream and Procrastinate.

    python -m benchmarks.first_steps [--times 3]

Each is installed into a new virtual environment, and handles one message in its shortest service, as its own quick start
has it. Headrace starts its embedded Postgres. The servers of the others are there before the clock starts: Redis for
FastStream, if `redis-server` is on the path, and the Postgres of this checkout for Procrastinate.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from benchmarks import harness

CHECKOUT = Path(__file__).parents[1]
LONGEST = 300.0
"""Seconds after which a step counts as failed."""


class Way(msgspec.Struct, frozen=True):
    """The way to a first message. `{bin}` is the environment's folder of commands, and `{server}` a server's address.

    Attributes:
        packages: what pip installs.
        service: the text of `service.py`, which writes a line "handled".
        prepare: a command that runs once before the worker, empty for none.
        worker: the command that handles messages.
        publish: the command that publishes one.
    """

    packages: tuple[str, ...]
    service: str
    prepare: tuple[str, ...]
    worker: tuple[str, ...]
    publish: tuple[str, ...]


WAYS = {
    "headrace": Way(
        packages=(f"{CHECKOUT}[embedded]",),
        service="""
from headrace import App

app = App()


@app.consumer("orders")
async def ship(order: dict) -> None:
    print("handled", flush=True)
""",
        prepare=(),
        worker=("{bin}/headrace", "run", "service:app"),
        publish=("{bin}/python", "-c", "import asyncio, service\nasync def main():\n    async with service.app: await service.app.publish('orders', 'a', {{}})\nasyncio.run(main())"),
    ),
    "faststream": Way(
        packages=("faststream[redis,cli]==0.7.8",),
        service="""
from faststream import FastStream
from faststream.redis import RedisBroker

broker = RedisBroker("{server}")
app = FastStream(broker)


@broker.subscriber(list="orders")
async def ship(order: dict) -> None:
    print("handled", flush=True)
""",
        prepare=(),
        worker=("{bin}/faststream", "run", "service:app"),
        publish=("{bin}/python", "-c", "import asyncio, service\nasync def main():\n    async with service.broker: await service.broker.publish({{}}, list='orders')\nasyncio.run(main())"),
    ),
    "procrastinate": Way(
        packages=("procrastinate==3.10.0", "psycopg[binary]"),
        service="""
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo="{server}"))


@app.task(name="ship")
async def ship() -> None:
    print("handled", flush=True)
""",
        prepare=("{bin}/procrastinate", "--app=service.app", "schema", "--apply"),
        worker=("{bin}/procrastinate", "--app=service.app", "worker"),
        publish=("{bin}/procrastinate", "--app=service.app", "defer", "ship"),
    ),
}  # fmt: skip


@contextmanager
def redis(place: Path) -> Iterator[str]:
    """A Redis server on a socket in this folder."""
    socket = place / "redis.sock"
    command = ("redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(place))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not socket.exists() and process.poll() is None:
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def server(name: str, place: Path) -> Iterator[str]:
    """The server that one of the others needs."""
    if name == "faststream":
        with redis(place) as url:
            yield url
    elif name == "procrastinate":
        with harness.server(None, None, stock=False) as url:
            yield url
    else:
        yield ""


def walk(name: str, way: Way) -> dict[str, float]:
    """Go the way once. Returns the seconds of each step."""
    took: dict[str, float] = {}
    with TemporaryDirectory(prefix="headrace-first-steps-") as folder, server(name, Path(folder)) as url:
        place = Path(folder)
        binaries = place / "venv" / Path(sysconfig.get_path("scripts")).name
        environment = {**os.environ, "PYTHONPATH": str(place)}

        def filled(words: tuple[str, ...]) -> list[str]:
            return [word.format(bin=binaries, server=url) for word in words]

        def run(step: str, *words: str) -> None:
            begun = time.monotonic()
            subprocess.run(
                filled(words), check=True, cwd=place, env=environment, stdout=subprocess.DEVNULL, timeout=LONGEST
            )
            took[step] = time.monotonic() - begun

        run("environment", sys.executable, "-m", "venv", "venv")
        run("install", "{bin}/python", "-m", "pip", "install", "-q", "--no-cache-dir", *way.packages)
        (place / "service.py").write_text(way.service.replace("{server}", url))
        if way.prepare:
            run("schema", *way.prepare)
        begun = time.monotonic()
        worker = subprocess.Popen(filled(way.worker), cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            run("publish", *way.publish)
            assert worker.stdout is not None
            if not any("handled" in line for line in worker.stdout):
                raise SystemExit(f"{name}: the worker ended without the message")
            took["first message"] = time.monotonic() - begun
            del took["publish"]
        finally:
            worker.terminate()
            worker.wait()
    took["in all"] = sum(took.values())
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_steps", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--times", type=int, default=3, help="how often each way is gone, in turn (default: %(default)s)"
    )
    parser.add_argument("ways", nargs="*", help=f"all by default: {', '.join(WAYS)}")
    asked = parser.parse_args()
    if unknown := set(asked.ways) - set(WAYS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. There are {', '.join(WAYS)}.")
    chosen = {name: way for name, way in WAYS.items() if name in (asked.ways or WAYS)}
    if "faststream" in chosen and not shutil.which("redis-server"):
        print("faststream is left out, because redis-server is not on the path", file=sys.stderr)
        del chosen["faststream"]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for _ in range(asked.times):
        for name, way in chosen.items():
            found[name].append(walk(name, way))
    for name, walks in found.items():
        steps = ", ".join(f"{step} {median(walk[step] for walk in walks):.1f} s" for step in walks[0])
        print(f"{name}: {steps}")


if __name__ == "__main__":
    main()
