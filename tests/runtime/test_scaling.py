"""Adaptive concurrency in a running app."""

from __future__ import annotations

import time
from pathlib import Path

import anyio.lowlevel
import pytest

from headrace import App
from headrace.runtime.pipeline import memory
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Gate, Seen, eventually, numbered, running


@pytest.fixture
def app(dsn: str) -> App:
    """An app with a short sampling interval."""
    app = App(dsn)
    app._timings = Timings(sampling=0.005)
    return app


@pytest.mark.asyncio
async def test_statistics_show_the_decisions_and_their_reasons(app: App) -> None:
    gate, began = Gate(), time.monotonic()

    @app.consumer("orders", concurrency=(2, 12))
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(60)))
        await gate.until(12)
        seen = app.statistics()["consumers"]["orders:ship"]
        assert seen["target"] == 12
        assert seen["reason"] == seen["decisions"][-1]["reason"] == "none has finished yet"
        assert [decision["actors"] for decision in seen["decisions"]] == [2, 4, 8, 12]
        assert all(0 <= decision["ago"] <= time.monotonic() - began for decision in seen["decisions"])
        gate.open()
        await app.idle()


@pytest.mark.asyncio
async def test_transactional_handlers_are_no_more_than_there_are_connections_for_them(dsn: str) -> None:
    app, gate = App(dsn, max_connections=6), Gate()
    app._timings = Timings(sampling=0.005)

    @app.consumer("orders", concurrency=(1, 64), transactional=True)
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(200)))
        await gate.until(app.database.holds)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert app.statistics()["consumers"]["orders:ship"]["target"] == app.database.holds < 6
        gate.open()
        await app.idle()
    assert gate.most == 4


@pytest.mark.asyncio
async def test_batches_have_adaptive_concurrency_too(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=(1, 5), batch=4)
    async def ship(numbers: list[int]) -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered(f"k{number}" for number in range(100)))
        await gate.until(5)
        gate.open()
        await app.idle()
    assert gate.most == 5


@pytest.mark.asyncio
async def test_a_call_with_few_messages_counts_as_a_call(app: App) -> None:
    """As where each message has a separate key. They were counted as a share of a full batch, so measuring took long."""
    sizes = Seen()

    @app.consumer("orders", concurrency=(1, 5), batch=50, group_by_key=True)
    async def ship(numbers: list[int]) -> None:
        sizes.note(len(numbers))

    async with running(app):
        assert app._service is not None
        (pipeline,) = app._service.pipelines
        await app.publish_many("orders", numbered(f"k{number}" for number in range(100)))
        await app.idle()
        assert pipeline.actors.batches == len(sizes.notes) == 100


@pytest.mark.asyncio
async def test_a_fixed_concurrency_has_no_governor_at_work(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", concurrency=3)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await seen.until(3)
        statistics = app.statistics()["consumers"]["orders:ship"]
        assert (statistics["target"], statistics["reason"], len(statistics["decisions"])) == (3, "fixed", 1)


def files(root: Path, **contents: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / name.replace("__", ".")).write_text(text)
    return root


MEGABYTE = 1 << 20


def test_memory_in_use_is_that_of_the_tightest_cgroup(tmp_path: Path) -> None:
    process = files(tmp_path / "self", cgroup="0::/pod/box\n")
    files(tmp_path / "fs" / "pod", memory__max=f"{100 * MEGABYTE}", memory__current=f"{50 * MEGABYTE}",
          memory__stat="anon 1\ninactive_file 0\n")  # fmt: skip
    files(tmp_path / "fs" / "pod" / "box", memory__max=f"{40 * MEGABYTE}", memory__current=f"{36 * MEGABYTE}",
          memory__stat=f"anon 1\ninactive_file {6 * MEGABYTE}\n")  # fmt: skip
    assert memory.share_in_use(tmp_path / "fs", process) == 0.75


def test_memory_in_use_is_that_of_a_version_1_cgroup_as_a_container_sees_it(tmp_path: Path) -> None:
    process = files(tmp_path / "self", cgroup="5:memory:/docker/5f\n0::/\n")
    files(tmp_path / "fs" / "memory", memory__limit_in_bytes=f"{10 * MEGABYTE}", memory__usage_in_bytes=f"{9 * MEGABYTE}",
          memory__stat="total_inactive_file 0\n")  # fmt: skip
    assert memory.share_in_use(tmp_path / "fs", process) == 0.9


def test_without_a_limit_the_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    process = files(tmp_path / "self", cgroup="0::/box\n", statm="1000 0 0 0 0 0 0")
    files(tmp_path / "fs" / "box", memory__max="max", memory__current="1", memory__stat="")
    assert memory.share_in_use(tmp_path / "fs", process) == 0.0


def test_where_memory_is_unknown_no_value_is_guessed(tmp_path: Path) -> None:
    assert memory.share_in_use(tmp_path / "fs", tmp_path / "self") is None


@pytest.mark.asyncio
async def test_a_rate_limit_is_the_reason_for_as_long_as_it_holds_messages_back(dsn: str) -> None:
    app = App(dsn)
    seen = Seen()

    @app.consumer("orders", rate_limit=1, rate_burst=1)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", [(str(number), number) for number in range(10)])
        await seen.until(1)
        await eventually(lambda: _reason_is(app, "held by rate limit 1/s"))


async def _reason_is(app: App, reason: str) -> bool:
    return bool(app.statistics()["consumers"]["orders:ship"]["reason"] == reason)
