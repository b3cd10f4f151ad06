"""The contents of `deploy/` fit Headrace: commands, settings, times, and the parts of the image."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.admin.configuration import Problems, declared, read_documents
from headrace.app.settings import read as read_settings
from headrace.app.settings import unknown_variables
from headrace.cli.tree import build
from tests.deploy.dockerfile import ROOT, copied, instructions

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MARGIN = 10
"""Seconds that a service manager waits longer than `shutdown_timeout`."""


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return found


def manifests() -> list[dict[str, Any]]:
    """All Kubernetes objects that the kustomization names."""
    folder = DEPLOY / "kubernetes"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((folder / name).read_text())]


def pods() -> Iterator[dict[str, Any]]:
    for one in manifests():
        if "template" in one.get("spec", {}):
            yield one["spec"]["template"]["spec"]


def containers() -> Iterator[dict[str, Any]]:
    for pod in pods():
        yield from (*pod.get("initContainers", ()), *pod["containers"])


def unit(path: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


def commands() -> list[list[str]]:
    """Every `headrace` command in the files."""
    found = [json.loads(one.text) for one in instructions() if one.name == "CMD" and one.stage == 2]
    found += [one["command"] for one in compose()["services"].values() if "command" in one]
    found += [one["args"] for one in containers()]
    return found + [shlex.split(unit(path)["Service"]["ExecStart"])[1:] for path in UNITS]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_each_command_exists(command: list[str]) -> None:
    build(command[0]).parse_args(command, exit_on_error=False, print_error=False)


def test_each_variable_is_a_setting() -> None:
    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    names = set(re.findall(r"HEADRACE_[A-Z_]+", text))
    assert names >= {"HEADRACE_DATABASE", "HEADRACE_READY_FILE"}
    assert not list(unknown_variables(dict.fromkeys(names, "x")))


def test_service_managers_wait_longer_than_a_drain_takes() -> None:
    drain = read_settings(environment={}).shutdown_timeout
    for path in UNITS:
        if unit(path)["Service"]["Type"] != "oneshot":
            assert int(unit(path)["Service"]["TimeoutStopSec"].removesuffix("s")) >= drain + MARGIN
            assert unit(path)["Service"]["KillMode"] == "mixed", "a second SIGTERM stops handlers at once"
    assert int(compose()["services"]["serve"]["stop_grace_period"].removesuffix("s")) >= drain + MARGIN
    for pod in pods():
        for container in pod["containers"]:
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
            assert pod.get("terminationGracePeriodSeconds", 10**9) >= drain + MARGIN + int(hook[1])


def test_no_container_may_more_than_it_needs() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
    for container in containers():
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert "memory" in container["resources"]["limits"]
        assert container["image"] == "headrace"


def test_the_image_is_given_all_that_the_package_is_made_of() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {Path(one).parts[0] for one in (*wheel["packages"], *wheel["force-include"])}
    needed |= {Path(one).parts[0] for one in build["project"]["license-files"]}
    needed |= {"README.md", "pyproject.toml", "requirements.lock"}
    assert needed <= set(copied())
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied())


def test_the_image_runs_as_an_ordinary_user_without_an_embedded_postgres() -> None:
    found = {one.name: one.text for one in instructions() if one.stage == 2}
    assert found["USER"] == "10001:10001"
    (extras,) = (one.text for one in instructions() if one.name == "ARG" and one.text.startswith("EXTRAS"))
    assert "embedded" not in extras
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] in found["ARG"]


def test_the_configuration_of_the_compose_file_is_valid() -> None:
    text = (DEPLOY / "compose" / "headrace.yaml").read_text()
    assert declared(read_documents(text, "headrace.yaml", {}, Problems())).name == "compose"
