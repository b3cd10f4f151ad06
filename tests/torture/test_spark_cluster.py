"""A cluster copies a stream by a streaming query and by a handler while everything in it is killed at random. Each
message is in both copies once.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.embedded import EmbeddedPostgres
from headrace.model.errors import HeadraceError
from tests.spark.cluster import Cluster, running_cluster
from tests.spark.on_cluster import LABOUR, start
from tests.spark.processes import PATIENCE
from tests.spark.written import Written
from tests.support import clusters, servers
from tests.torture.test_spark_writer import migrate

pytestmark = pytest.mark.torture

KILLS = 21
ROWS = 600
"""Messages that are published before each kill."""
VICTIMS = ("executor", "executor's Python", "worker", "driver", "driver's Java", "Postgres", "connections")
COPIES = ("streamed", "handled")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that belongs to this test and may crash."""
    with clusters.cluster(tmp_path / "postgres", max_connections="100") as postgres:
        yield postgres


class Site:
    """The cluster, its driver, and what was published and copied."""

    def __init__(self, cluster: Cluster, server: EmbeddedPostgres, directory: Path) -> None:
        self.cluster, self.server, self.directory = cluster, server, directory
        self.written = Written(server.url())
        self.published = 0
        self.drivers = 0
        self.driver = self.start()

    def start(self) -> subprocess.Popen[str]:
        self.drivers += 1
        speculation = {
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.1",
        }
        with (self.directory / f"driver-{self.drivers}.log").open("w") as log:
            return start(
                self.cluster, "labour", self.directory, self.written.url, str(self.directory), output=log,
                HEADRACE_SPARK_SHIP=".", HEADRACE_DATABASE=self.written.url, **speculation,
            )  # fmt: skip

    def publish(self) -> None:
        first, last = self.published + 1, self.published + ROWS
        self.written.fetch(
            f"""select headrace.publish_many('orders', array_agg('k' || g % 50), array_agg(json_build_object('n', g)))
                from generate_series({first}, {last}) as g"""
        )
        self.published = last

    def count(self, stream: str) -> int:
        """The number of messages in a copy, or -1 while the server is unavailable."""
        try:
            found = self.written.fetch(f"select to_regclass('headrace_streams.{stream}') is not null")[0][0]
            return int(self.written.fetch(f"select count(*) from headrace_streams.{stream}")[0][0]) if found else 0
        except HeadraceError:
            return -1

    def until(self, share: float) -> None:
        """Wait until both copies have this share of what was published. A driver that has ended is started again."""
        end = time.monotonic() + 5 * PATIENCE
        while min(counts := [self.count(stream) for stream in COPIES]) < share * self.published:
            if self.driver.poll() is not None:
                self.driver = self.start()
            assert time.monotonic() < end, f"{counts} of {self.published} are there, and no more come"
            time.sleep(0.2)

    def strike(self, victim: str, chance: random.Random) -> bool:
        """Kill something. Returns False if there is none at the moment."""
        if victim == "Postgres":
            self.server.restart("immediate")
        elif victim == "connections":
            self.written.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            )
        elif victim == "worker":
            name = chance.choice(["worker-1", "worker-2"])
            self.cluster.kill(name)
            self.cluster.start_worker(name)
        elif victim == "driver":
            below = psutil.Process(self.driver.pid).children(recursive=True)
            for one in (self.driver, *below):
                one.kill()
            self.driver.wait()
            psutil.wait_procs(below, timeout=PATIENCE)
            self.driver = self.start()
        else:
            found = {
                "executor": self.cluster.executors,
                "executor's Python": self.cluster.pythons,
                "driver's Java": self.java,
            }[victim]()
            if not found:
                return False
            chance.choice(found).kill()
        return True

    def java(self) -> list[psutil.Process]:
        return [one for one in psutil.Process(self.driver.pid).children() if "java" in one.name()]

    def stop(self) -> None:
        (self.directory / "over").touch()
        try:
            self.driver.wait(PATIENCE)
        finally:
            self.driver.kill()


def test_each_message_is_copied_once_whatever_is_killed(server: EmbeddedPostgres, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, logs in {tmp_path}")
    chance = random.Random(seed)
    servers.run(migrate(server.url()))
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive/labour.py").write_text(LABOUR)
    done = Counter[str]()
    with running_cluster(tmp_path / "cluster") as cluster:
        written = Written(server.url())
        for stream in ("orders", *COPIES):
            written.create(stream)
        site = Site(cluster, server, tmp_path / "drive")
        try:
            while done.total() < KILLS:
                site.publish()
                site.until(0.5)
                time.sleep(chance.uniform(0, 2))  # to kill at any point of a batch
                victim = min(VICTIMS, key=lambda one: (done[one], chance.random()))
                if site.strike(victim, chance):
                    done[victim] += 1
            site.until(1)
            site.stop()
        finally:
            if site.driver.poll() is None:
                site.driver.kill()
    print(f"published {site.published}, killed {dict(done)}, drivers {site.drivers}")
    wanted = Counter(written.messages("orders"))
    for stream in COPIES:
        assert Counter(written.messages(stream)) == wanted, stream
    assert written.fetch("select count(*)::int from headrace_internal.dead_letters")[0][0] == 0
