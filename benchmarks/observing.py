"""`headrace observe` in its own process, without a terminal. Prints its queries and its cost as a line of JSON."""

from __future__ import annotations

import sys
import time

import anyio
import msgspec

from headrace import store
from headrace.admin import Admin
from headrace.cli.observe.observer import Observer

INTERVAL = 1.0
SIZE = (160, 50)


class Taken(msgspec.Struct, frozen=True):
    """The cost of an observer, from its first picture on.

    Args:
        looks: how often it refreshed.
        round_trips: to the database.
        looking: total seconds of all refreshes.
        cpu: seconds of CPU time of its process.
        seconds: the duration of the measurement.
    """

    looks: int
    round_trips: float
    looking: float
    cpu: float
    seconds: float


class Timed(Observer):
    """Counts its refreshes."""

    def __init__(self, admin: Admin) -> None:
        super().__init__(admin, "the benchmark", INTERVAL)
        self.looks, self.looking = 0, 0.0
        self.up = anyio.Event()

    async def work(self) -> None:
        """Run without a terminal, until `exit`. Errors are on standard error."""
        await self.run_async(headless=True, size=SIZE)
        if not self.looks or self.return_code:
            raise SystemExit("the observer ended early")

    async def poll(self) -> float:
        took = await super().poll()
        self.looks, self.looking = self.looks + 1, self.looking + took
        self.up.set()
        return took


async def observe(dsn: str, seconds: float) -> Taken:
    """Observe a database for `seconds`. Prints `up` when the first picture is there."""
    database = store.Database(dsn, max_connections=2, application_name="headrace observe")
    await database.open()
    try:
        observer = Timed(Admin(database))
        async with anyio.create_task_group() as group:
            group.start_soon(observer.work)
            await observer.up.wait()
            print("up", file=sys.__stdout__, flush=True)
            looks, looking, trips = observer.looks, observer.looking, database.statistics()["round_trips"]
            cpu, start = time.process_time(), time.monotonic()
            await anyio.sleep(seconds)
            taken = Taken(
                looks=observer.looks - looks,
                round_trips=database.statistics()["round_trips"] - trips,
                looking=observer.looking - looking,
                cpu=time.process_time() - cpu,
                seconds=time.monotonic() - start,
            )
            observer.exit()
        return taken
    finally:
        await database.close()


if __name__ == "__main__":
    found = anyio.run(observe, sys.argv[1], float(sys.argv[2]), backend_options={"use_uvloop": True})
    print(msgspec.json.encode(found).decode(), flush=True)
