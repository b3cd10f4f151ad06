"""Handlers that a worker process can import, for the tests of runners."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from headrace import Batch, Message, Reject, Retry


class Sum(msgspec.Struct):
    numbers: list[int]
    into: str


tenant: ContextVar[int | None] = ContextVar("tenant", default=None)


def enter(order: Sum, message: Message) -> None:
    write(order.into, tenant.get())
    tenant.set(message.seq)


class Picky(Exception):
    """An exception that can be pickled and not unpickled."""

    def __init__(self, *, why: str) -> None:
        super().__init__(why)


def write(path: str, *words: Any) -> None:
    with Path(path).open("a") as file:
        print(*words, file=file)


def add(order: Sum, message: Message) -> None:
    write(order.into, os.getpid(), message.key, message.seq, message.attempt, sum(order.numbers), message.headers)


def add_many(orders: list[Sum], batch: Batch) -> list[Any]:
    for order, message in zip(orders, batch, strict=True):
        write(order.into, message.key, message.seq, sum(order.numbers), len(batch))
    return [Reject("no sixes") if 6 in order.numbers else None for order in orders]


def reject_by_batch(batch: Batch) -> None:
    for message in batch:
        if message.seq == 2:
            batch.reject(message, "by the batch")


def fail(order: dict[str, Any], message: Message) -> Any:
    match order["how"]:
        case "value error":
            raise ValueError("a wrong value")
        case "reject":
            raise Reject("not for us")
        case "returned reject":
            return Reject("not for us either")
        case "retry" if message.attempt == 1:
            raise Retry("later", after=0)
        case "unpicklable":
            raise Picky(why="too picky")
        case "local":

            class Local(Exception):
                pass

            raise Local("very local")
        case "unpicklable result":
            return threading.Lock()
        case "exit":
            os._exit(3)
        case "sys.exit":
            raise SystemExit(4)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "ack":
            message.ack()  # type: ignore[unused-coroutine]
        case "publish":
            message.publish("orders", "a", 1)  # type: ignore[unused-coroutine]
    return None


def spin(order: dict[str, Any]) -> None:
    """Run for ever, without yielding and without reacting to SIGTERM."""
    write(order["into"], os.getpid())
    if not order.get("once") or len(Path(order["into"]).read_text().splitlines()) == 1:
        while True:
            pass


def fork(order: dict[str, Any]) -> None:
    """Work with a pool of forked processes. One of them is still busy when they are terminated."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.apply_async(time.sleep, [600])
        write(order["into"], *pool.map(abs, [-1, 2]))


def fork_and_die(order: dict[str, Any]) -> None:
    """Be killed while a forked process lives, which has the ends of this one's pipes."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
    process.start()
    write(order["into"], process.pid)
    os.setpgid(process.pid or 0, 0)  # so that it is not killed with its parent
    os.kill(os.getpid(), signal.SIGKILL)


def start_another(order: dict[str, Any]) -> None:
    """Start a program that runs for ever, and wait for it, or exit."""
    program = subprocess.Popen(["sleep", "infinity"])
    write(order["into"], program.pid)
    if order.get("exits"):
        os._exit(3)
    program.wait()


def wait(order: dict[str, Any]) -> None:
    """Run until a test writes to the pipe."""
    write(order["into"], os.getpid())
    Path(order["pipe"]).read_text()
    write(order["into"], "done")


def forward(order: int) -> Any:
    return ("b", order * 2)


def reject_in_a_group(order: Sum) -> None:
    raise ExceptionGroup("tasks", [Reject("no sixes"), Picky(why="too picky")])


def hang_with_one(order: Sum) -> None:
    write(order.into, os.getpid())
    if order.numbers == [1]:
        time.sleep(3600)
