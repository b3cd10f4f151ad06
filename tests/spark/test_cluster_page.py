"""The documentation page about clusters. Its commands run unchanged and in order on a cluster of this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace_spark.session import shipping
from tests.spark.cluster import Cluster
from tests.spark.processes import PATIENCE
from tests.spark.written import Written

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spark-cluster.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Reader:
    """A reader that follows the page line by line on the driver's machine. The nodes are there already."""

    def __init__(self, cluster: Cluster, dsn: str, directory: Path) -> None:
        self.directory = directory
        self.written = Written(dsn)
        self.variables = cluster.variables(PYTHONPATH=os.pathsep.join(sys.path))
        self.here = {
            "postgresql://shop:secret@10.0.0.9/shop": dsn,
            "spark://10.0.0.1:7077": cluster.url,
            "/opt/spark/bin/python": str(cluster.python),
            "/mnt/shared": str(directory / "shared"),
        }
        for name in ("HEADRACE_SPARK_MASTER", "HEADRACE_SPARK_PYTHON"):
            del self.variables[name]  # the page sets them
        self.ran: list[str] = []

    def read(self, page: str) -> None:
        for language, block in BLOCK.findall(page):
            if language == "python":
                name = block.partition("\n")[0].removeprefix("# ")
                (self.directory / name).write_text(block)
                continue
            for line in block.splitlines():
                for there, here in self.here.items():
                    line = line.replace(there, here)
                self.shell(shlex.split(line, comments=True))

    def shell(self, words: list[str]) -> None:
        match words:
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self.variables[name] = value
            case ["headrace", "run", *_]:
                self.work_off(words)
            case ["headrace", *_]:
                process = self.start(words)
                self.ran.append(process.communicate(timeout=PATIENCE * 2)[0])
                assert process.returncode == 0, (words, self.ran[-1])
            case _:
                assert words[0] in ("pip", "apt-get", "python3") or words[0].startswith("/opt/spark/bin/"), words

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *words[1:]], cwd=self.directory, env=self.variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def work_off(self, words: list[str]) -> None:
        """Run the service until it has published what it makes of the two payments."""
        service = self.start(words)
        end = time.monotonic() + PATIENCE * 2
        try:
            while not self.balances():
                assert service.poll() is None
                assert time.monotonic() < end
                time.sleep(0.2)
            service.send_signal(signal.SIGTERM)
            out, _ = service.communicate(timeout=PATIENCE)
        finally:
            service.kill()
        assert service.returncode == 0, out

    def balances(self) -> list[tuple[str, str]]:
        exists = self.written.fetch("select to_regclass('headrace_streams.balances') is not null")[0][0]
        return self.written.messages("balances") if exists else []


@pytest.mark.torture
def test_every_line_of_the_page_works(cluster: Cluster, dsn: str, tmp_path: Path) -> None:
    reader = Reader(cluster, dsn, tmp_path)
    reader.read(PAGE)
    checked = next(out for out in reader.ran if "job  " in out)
    assert re.search(r"^worker .*, headrace \S+$", checked, re.MULTILINE), checked
    messages = reader.balances()
    assert [data for key, data in messages if key == "accounts.1"][:2] == [
        '{"seq":1,"cents":1250}',
        '{"seq":2,"cents":1349}',
    ]
    assert list((tmp_path / "shared/payments").rglob("*.parquet")), reader.ran
    assert any('"payments":2' in data.replace(" ", "") for _, data in messages), (messages, reader.ran)


def test_the_page_names_the_limits_of_what_is_sent() -> None:
    text = " ".join(PAGE.split())
    assert f"Up to {shipping.MAX_FILES:,} files and {shipping.MAX_BYTES // 1_000_000} MB" in text


def test_the_page_shows_the_redaction_of_our_sessions() -> None:
    from headrace_spark.session.configuration import _SHARED

    (block,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    shown = dict(
        line.replace("\\\\", "\\").split() for line in block.splitlines()
    )  # escaped as in a file of properties
    assert shown == {key: value for key, value in _SHARED.items() if "redaction" in key}
