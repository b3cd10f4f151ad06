"""The database's password is in nothing that Spark shows, logs or keeps, on a cluster with everything switched on."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from tests.spark.cluster import Cluster
from tests.spark.filling import fill
from tests.spark.on_cluster import start
from tests.spark.processes import PATIENCE
from tests.support import servers

PASSWORD = "Geheim@7/x"


@pytest.fixture
def confidential(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that asks for a password, with two streams."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = EmbeddedPostgres(tmp_path / "postgres", port=port, settings=servers.QUICK)
    with server.acquire() as handle:

        async def prepare() -> None:
            async with servers.opened(handle.url) as database:
                await store.migrate(database)
                await fill(database, "orders", 20)
                await store.create_stream(database, "copies")
                await database.fetch(f"create role ann superuser login password '{PASSWORD}'")

        servers.run(prepare())
        parts = urlsplit(handle.url)
        yield f"postgresql://ann:{quote(PASSWORD, safe='')}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    server.destroy()


def leaks(secret: str, *places: Path) -> list[str]:
    """Return the lines of files below these places that contain a secret, or its first letters, in any form."""
    forms = {secret, quote(secret, safe=""), quote(secret), secret[:6]}
    found = []
    for path in (file for place in places for file in place.rglob("*") if file.is_file()):
        content = path.read_bytes()
        found += [
            f"{path}: {line[:2000]!r}" for line in content.splitlines() if any(form.encode() in line for form in forms)
        ]
    return found


@pytest.mark.torture
def test_the_password_is_nowhere(cluster: Cluster, confidential: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "events").mkdir(parents=True)
    wrong = confidential.replace("Geheim", "falsch-Geheim")
    variables = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.log.level": "INFO",
    }
    ended = start(
        cluster, "confide", tmp_path, confidential, wrong, str(place), HEADRACE_SPARK_SHIP="headrace", **variables
    )
    out, errors = ended.communicate(timeout=PATIENCE * 2)
    (place / "out").write_text(out)
    (place / "errors").write_text(errors)
    assert ended.returncode == 0, errors[-5000:]
    for number, page in enumerate(("", "json/")):
        with urllib.request.urlopen(f"{cluster.web}/{page}") as answer:
            (place / f"master-{number}").write_bytes(answer.read())
    logs = [cluster.directory, place]
    assert any(path.name == "stderr" for path in cluster.directory.rglob("*"))
    events = b"".join(path.read_bytes() for path in (place / "events").rglob("events_*"))
    assert b"BatchScan headrace" in events, "plans are in the log of events, in plain text"
    assert leaks(PASSWORD, *logs) == []
