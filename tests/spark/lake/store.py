"""Runs the object store, and knows what its clients must be given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.spark.lake import fetched
from tests.spark.processes import PATIENCE, QUICK, environment

SERVER = Path(__file__).with_name("server.py")
BUCKET = "lake"
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Store:
    """A running object store with one bucket.

    Attributes:
        endpoint: its URL.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    @property
    def credentials(self) -> dict[str, str]:
        """The variables by which clients other than Hadoop find the store."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a process with a local session, S3A, and credentials."""
        conf = {
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.driver.extraClassPath": ":".join(map(str, fetched.jars())),
            "spark.sql.shuffle.partitions": "2",
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # Each of its retries after a failure would wait.
            "spark.hadoop.fs.s3a.attempts.maximum": "1",
            "spark.hadoop.fs.s3a.retry.limit": "1",
            **fetched.S3A,
            **{name: value for name, value in more.items() if name.startswith("spark.")},
        }
        ours = {
            "HEADRACE_SPARK_MASTER": "local[2]",
            "HEADRACE_SPARK_CONF": ",".join(f"{name}={value}" for name, value in conf.items()),
            **self.credentials,
        }
        return environment(**ours | {name: value for name, value in more.items() if not name.startswith("spark.")})

    @contextmanager
    def cut(self, method: str, path: str, *, after: bool = False, hold: bool = False) -> Iterator[None]:
        """Cut the store off at a request of the block. See `server.Cut`."""
        self._ask("cut", {"method": method, "path": path, "after": after, "hold": hold})
        try:
            yield
        finally:
            struck = self._ask("heal", {})
        assert struck, f"there was no {method} of {path}"

    def wait(self) -> None:
        """Wait until the request of the cut has come."""
        self._ask("struck", {})

    def make_bucket(self) -> None:
        # A store that checks signatures would refuse this. moto takes from it to which account and service it belongs.
        signed = (
            f"AWS4-HMAC-SHA256 Credential={KEY}/20300101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        )
        request = urllib.request.Request(
            f"{self.endpoint}/{BUCKET}", method="PUT", headers={"Authorization": signed, "Content-Length": "0"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def _ask(self, command: str, words: Any) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/-/{command}", data=json.dumps(words).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)


@contextmanager
def running_store() -> Iterator[Store]:
    """Run an object store for the block. Skips the test where it can't be had."""
    fetched.require()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env={**kept, "PYTHONPATH": str(fetched.moto())},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the object store has ended"
        store = Store(f"http://127.0.0.1:{port}")
        store.make_bucket()
        yield store
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
