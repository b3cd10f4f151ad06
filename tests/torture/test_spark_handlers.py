"""Java, executors, their Python processes and drivers are killed under a handler with functions, windows and broadcast
variables of its module. Each message is in its output stream and in a table once, and no attempt counts.

`HEADRACE_TEST_KILLS=50 HEADRACE_TEST_SEED=7 make torture ARGS="tests/torture/test_spark_handlers.py -s"` kills more
often, from this seed on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.spark.cluster import Cluster, LocalCluster, java_of, running_cluster
from tests.spark.processes import PATIENCE
from tests.spark.written import Written
from tests.torture import spark_service
from tests.torture.spark_service import KEYS, name_of, price_of

KILLS = int(os.environ.get("HEADRACE_TEST_KILLS", "8"))
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "0"))
ROWS = 4 * KEYS
"""Messages that are published before each kill: two batches or more."""
ON_NODES = ("executor", "Python of an executor")
VICTIMS = ("Java", *ON_NODES, "driver", "Java", *ON_NODES, "driver, by SIGTERM")
"""In turns, shuffled."""
UNAVAILABLE = 69
EARLY = 0.4
"""The share of kills that don't wait for results, so that some hit a driver that starts."""
STARTS = 20.0
"""Seconds that a driver takes until its first batch, or more."""


class Site:
    """A cluster, the driver on it and its supervisor, and what was published."""

    def __init__(
        self, cluster: Cluster | LocalCluster, dsn: str, directory: Path, plan: list[str], chance: random.Random
    ) -> None:
        self.cluster, self.directory, self.plan, self.chance = cluster, directory, plan, chance
        self.written = Written(dsn)
        self.written.create("orders")
        self.written.create("copies")
        self.written.fetch("create table results (key text not null, n bigint not null)")
        shutil.copy(spark_service.__file__, directory / "service.py")
        self.published = 0
        self.ends = Counter[tuple[str, int]]()
        self.families = set[psutil.Process]()
        self.log = directory / "log"
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        # A driver that is killed counts an attempt for the messages that it held, and nothing else does.
        deliveries = 1 + self.plan.count("driver")
        variables = self.cluster.variables(
            HEADRACE_SPARK_SHIP="service.py", HEADRACE_DATABASE=self.written.url, HEADRACE_DATA=str(self.directory / "data"),
            PYTHONPATH=os.pathsep.join(sys.path), MAX_DELIVER=str(deliveries), COLLECTED_ROWS=self.chance.choice(["3", "20000"]),
        )  # fmt: skip
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", "run", "service:app"],
                cwd=self.directory, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def publish(self) -> None:
        first, last = self.published + 1, self.published + ROWS
        self.written.fetch(
            f"""select headrace.publish_many('orders', array_agg('k' || g % {KEYS}), array_agg(json_build_object('n', g)))
                from generate_series({first}, {last}) as g"""
        )
        self.published = last

    def entered(self) -> int:
        return int(self.written.fetch("select count(*) from results")[0][0])

    def until(self, count: int) -> None:
        """Wait until the table has this many rows. A driver that has ended because Spark did is started again."""
        end = time.monotonic() + 5 * PATIENCE
        while (found := self.entered()) < count:
            if self.driver.poll() is not None:
                self.replaced("by itself", UNAVAILABLE)
            assert time.monotonic() < end, f"{found} of {count} rows are there, and no more come\n{self.logged()}"
            time.sleep(0.1)

    def ended(self, victim: str, *codes: int) -> None:
        """Wait for the driver's end, which must have one of these exit codes."""
        try:
            self.driver.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # the log then has its stacks
            self.driver.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.driver.wait(1)
        code = self.driver.returncode
        assert code in codes, f"{victim}: {code}\n{self.logged()}"
        self.ends[victim, code] += 1

    def replaced(self, victim: str, *codes: int) -> None:
        """Start the driver again after its end."""
        self.ended(victim, *codes)
        self.driver = self.start()

    def strike(self, victim: str) -> bool:
        """Kill something. Returns False if there is none at the moment."""
        if self.driver.poll() is not None:
            self.replaced("by itself", UNAVAILABLE)
        pid = self.driver.pid
        self.families.update(psutil.Process(pid).children(recursive=True))
        if victim == "driver":
            self.driver.kill()
            self.replaced(victim, -signal.SIGKILL)
        elif victim == "driver, by SIGTERM":
            self.driver.terminate()
            self.replaced(victim, 0, -signal.SIGTERM)  # the latter before it has read its settings
        elif victim == "Java":
            if not (found := java_of(pid)):
                return False
            found[0].kill()
            self.replaced(victim, UNAVAILABLE)
        else:
            find = self.cluster.executors if victim == "executor" else self.cluster.pythons
            if not (found := find(pid)):
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                self.chance.choice(found).kill()
        return True

    def logged(self) -> str:
        return self.log.read_text(errors="replace")[-20_000:]

    def run(self) -> None:
        """Carry out the plan, and wait until every message is through."""
        for victim in self.plan:
            done = self.entered()
            self.publish()
            early = self.chance.random() < EARLY
            if not early:
                self.until((done + self.published) // 2)
            time.sleep(self.chance.uniform(0, STARTS if early else 3))  # to kill at any point of a start, or of a batch
            end = time.monotonic() + PATIENCE
            while not self.strike(victim):
                assert time.monotonic() < end, f"there is no {victim}\n{self.logged()}"
                time.sleep(0.02)
        self.publish()  # so that the last driver has started, too
        self.until(self.published)
        self.driver.terminate()
        self.ended("driver, at the end", 0)
        end = time.monotonic() + PATIENCE
        while left := [one for one in self.families if _lives(one)]:
            assert time.monotonic() < end, f"they have outlived their drivers: {left}"
            time.sleep(0.1)

    def check(self) -> None:
        """Check that each message was processed once, and no attempt counted."""
        assert self.written.fetch("select count(*)::int from headrace_internal.dead_letters") == [(0,)], self.logged()
        assert not (counted := self.directory / "counted").exists(), f"{counted.read_text()}\n{self.logged()}"
        copies = [(key, json.loads(data)) for key, data in self.written.messages("copies")]
        expected = [(f"k{n % KEYS}", n) for n in range(1, self.published + 1)]
        assert Counter((key, row["n"]) for key, row in copies) == Counter(expected)
        assert Counter(self.written.fetch("select key, n from results")) == Counter(expected)
        before = {key: {"n": 0, "place": 0, "total": 0} for key, _ in expected}
        for key, row in copies:
            n, place, last = row["n"], row["place"], before[key]
            assert n > last["n"], "the order of a key"
            assert place in {1, last["place"] + 1}
            assert row["total"] == n + (last["total"] if place > 1 else 0)
            assert (row["twice"], row["minus"], row["price"], row["name"]) == (2 * n, -n, price_of(key), name_of(key))
            before[key] = row


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _cluster(kind: str, directory: Path) -> Iterator[Cluster | LocalCluster]:
    if kind == "standalone":
        with running_cluster(directory) as cluster:
            yield cluster
    else:
        yield LocalCluster(directory / "nodes")


def _torture(kind: str, plan: list[str], chance: random.Random, dsn: str, directory: Path) -> None:
    (directory / "cluster").mkdir()
    (directory / "driver").mkdir()
    with _cluster(kind, directory / "cluster") as cluster:
        site = Site(cluster, dsn, directory / "driver", plan, chance)
        try:
            site.run()
        finally:
            site.driver.kill()
            site.driver.wait()
            print(
                f"{kind}: published {site.published}, killed {dict(Counter(plan))}, ends of drivers {dict(site.ends)}"
            )
        site.check()


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_handlers_are_exact_and_no_attempt_counts_whatever_is_killed(kind: str, dsn: str, tmp_path: Path) -> None:
    seed = SEED or random.randrange(2**32)
    print(f"seed {seed}, logs in {tmp_path}")
    chance = random.Random(f"{seed} {kind}")
    plan = list(itertools.islice(itertools.cycle(VICTIMS), KILLS))
    chance.shuffle(plan)
    _torture(kind, plan, chance, dsn, tmp_path)
