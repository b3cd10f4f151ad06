"""Nothing in `deploy/` runs as a superuser, and servers and workers have no more than their grants."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import anyio
import asyncpg
import pytest
import yaml

from headrace import store
from headrace.admin.configuration import Problems, declared, read_documents
from headrace.model.errors import NotGranted
from tests.deploy.test_files import DEPLOY, compose, manifests, pods
from tests.support.copies import Copy, copy_of, require_programs
from tests.support.servers import opened


def roles_of_compose() -> dict[str, str]:
    """The database role of each service that runs Headrace."""
    services = compose()["services"]
    urls = {name: one["environment"].get("HEADRACE_DATABASE") for name, one in services.items()}
    return {name: re.sub(r"postgresql://(\w+):.*", r"\1", url) for name, url in urls.items() if url}


def test_the_server_of_the_compose_file_has_another_role_than_the_owner() -> None:
    assert roles_of_compose() == {
        "migrate": "headrace_owner", "configure": "headrace_owner", "serve": "headrace_server",
    }  # fmt: skip
    roles = (DEPLOY / "compose" / "roles.sql").read_text()
    assert "superuser" not in roles.replace("as its superuser", "")
    assert "POSTGRES_USER" not in compose()["services"]["postgres"]["environment"]


def test_each_kind_of_pod_has_the_secret_of_a_role_of_its_own() -> None:
    found = {
        container["name"]: entry["valueFrom"]["secretKeyRef"]["name"]
        for pod in pods()
        for container in pod["containers"]
        for entry in container["env"]
        if entry["name"] == "HEADRACE_DATABASE"
    }
    assert found == {"grants": "headrace-owner", "serve": "headrace-server", "worker": "headrace-worker"}
    for pod in pods():
        secrets = {
            entry["valueFrom"]["secretKeyRef"]["name"]
            for container in (*pod["initContainers"], *pod["containers"])
            for entry in container["env"]
            if "valueFrom" in entry
        }
        assert len(secrets) == 1


@pytest.mark.parametrize(("file", "roles"), [
    ("compose/headrace.yaml", {"headrace_server"}), ("kubernetes/grants.yaml", {"headrace_server", "headrace_worker"}),
])  # fmt: skip
def test_the_grants_name_the_roles(file: str, roles: set[str]) -> None:
    path = DEPLOY / file
    assert declared(read_documents(path.read_text(), path.name, {}, Problems())).name
    assert set(yaml.safe_load(path.read_text())["grants"]) == roles


def test_a_network_policy_selects_every_pod_and_opens_the_server_only() -> None:
    policies = [one for one in manifests() if one["kind"] == "NetworkPolicy"]
    (all_pods,) = (one["spec"] for one in policies if "ingress" not in one["spec"])
    (expression,) = all_pods["podSelector"]["matchExpressions"]
    names = {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for one in manifests()
        if "template" in one.get("spec", {})
    }
    assert set(expression["values"]) == names
    (opened_pods,) = (one["spec"] for one in policies if "ingress" in one["spec"])
    assert opened_pods["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "headrace-serve"}


@pytest.fixture
def cluster() -> Iterator[Copy]:
    """A new server, whose superuser is headrace."""
    with copy_of(require_programs(18, "psql")) as copy:
        copy.initdb()
        copy.start()
        yield copy


@pytest.mark.asyncio
@pytest.mark.process
async def test_the_roles_of_the_compose_file_can_do_their_work_and_no_more(
    cluster: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = cluster.home / "roles.sql"
    roles.write_text((DEPLOY / "compose" / "roles.sql").read_text())
    monkeypatch.setenv("OWNER_PASSWORD", "one")
    monkeypatch.setenv("SERVER_PASSWORD", "two")
    psql = [cluster.programs.program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-f", roles, "-d", cluster.url]
    await anyio.to_thread.run_sync(lambda: subprocess.run(psql, check=True, capture_output=True))
    owner = cluster.url.replace("headrace@", "headrace_owner:one@")
    server = cluster.url.replace("headrace@", "headrace_server:two@")
    await headrace("migrate", database=owner)
    await headrace("apply", str(DEPLOY / "compose" / "headrace.yaml"), database=owner)
    async with opened(server) as database:
        assert database.granted
        assert database.maintains
        await store.create_stream(database, "another")
        with pytest.raises(NotGranted):
            await store.grants(database)
    connection = await asyncpg.connect(cluster.url)
    try:
        assert await connection.fetch("select rolname from pg_roles where rolsuper") == [("headrace",)]
    finally:
        await connection.close()


async def headrace(*words: str, database: str) -> None:
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-m", "headrace", *words], env={**os.environ, "HEADRACE_DATABASE": database},
            capture_output=True, text=True, check=False,
        )
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
