"""Procrastinate: a task, whose lock is the message's key where order counts.

Its documentation recommends the connector of psycopg, LISTEN, batches for many jobs, and to delete finished jobs. A
worker's `concurrency` is for handlers that await.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import procrastinate
from procrastinate import App, PsycopgConnector

from benchmarks.peers.process.adapter import Adapter, ended
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler


class Peer(Adapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "concurrency": 64,
        "pool": 16,  # connections
        "delete_jobs": "successful",
        "poll_seconds": 1.0,
        "retry": 1,  # seconds
        "stalled_seconds": 30.0,  # after which a job of a worker without a heartbeat is tried again
    }
    _app: App

    def _made(self, handler: Handler | None = None) -> tuple[App, Any]:
        app = App(connector=PsycopgConnector(conninfo=self.url, min_size=1, max_size=self.settings["pool"]))
        strategy = procrastinate.RetryStrategy(max_attempts=10, wait=self.settings["retry"])

        async def handle(order: dict[str, Any]) -> None:
            assert handler is not None
            await handler(order)

        return app, app.task(name="handle", queue="orders", retry=strategy)(handle)

    async def set_up(self) -> None:
        app, _ = self._made()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        self._app, self._task = self._made()
        async with self._app.open_async():
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        options: dict[str, Any] = {}
        if delay is not None:
            options["schedule_at"] = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=delay)
        if not self.ordered:
            await self._task.configure(**options).batch_defer_async(*({"order": one.order} for one in messages))
            return
        jobs = [self._task.configure(lock=one.key, **options).make_new_job(order=one.order) for one in messages]
        await self._app.job_manager.batch_defer_jobs_async(jobs)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            for one in messages:
                await self._task.configure(lock=one.key, connection=connection).defer_async(order=one.order)
            yield

    async def remaining(self) -> int:
        row = await self._app.connector.execute_query_one_async(
            "select count(*) as count from procrastinate_jobs where status in ('todo', 'doing')"
            " and (scheduled_at is null or scheduled_at < now() + interval '1 hour')"
        )
        return int(row["count"])

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        app, _ = self._made(handler)
        async with app.open_async():
            worker = asyncio.create_task(
                app.run_worker_async(
                    queues=["orders"],
                    concurrency=self.settings["concurrency"],
                    delete_jobs=self.settings["delete_jobs"],
                    fetch_job_polling_interval=self.settings["poll_seconds"],
                    shutdown_graceful_timeout=10,
                    install_signal_handlers=False,
                    update_heartbeat_interval=self.settings["stalled_seconds"] / 3,
                    stalled_worker_timeout=self.settings["stalled_seconds"],
                )
            )
            retrying = asyncio.create_task(self._retry_stalled(app))
            async with ended(worker), ended(retrying):
                await asyncio.wait([worker, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
                if worker.done():
                    worker.result()

    async def _retry_stalled(self, app: App) -> None:
        """The task that its documentation has users write, without which a killed worker's jobs stay as they are."""
        while True:
            await asyncio.sleep(self.settings["stalled_seconds"] / 2)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=self.settings["stalled_seconds"]):
                await app.job_manager.retry_job(job)
