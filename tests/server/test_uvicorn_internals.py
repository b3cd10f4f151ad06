"""The parts of uvicorn's protocol that the server uses, which are not public. A new use, or a name that a release lacks, fails here.

The bound on uvicorn in pyproject.toml is raised once these tests and those of the protocol pass with the next release.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import uvicorn.config
import uvicorn.protocols.http.flow_control
import uvicorn.protocols.http.httptools_impl
import uvicorn.server

from headrace.server import transport
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.protocol import Connection

_PROTOCOL = uvicorn.protocols.http.httptools_impl

USED = {
    (_PROTOCOL, "HttpToolsProtocol"): {
        *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing", "shutdown"),
        *(
            "on_message_begin",
            "on_header",
            "on_headers_complete",
            "on_body",
            "on_message_complete",
            "on_response_complete",
        ),
        *(
            "timeout_keep_alive",
            "timeout_keep_alive_handler",
            "timeout_keep_alive_task",
            "_unset_keepalive_if_required",
        ),
        *(
            "client",
            "connections",
            "cycle",
            "flow",
            "headers",
            "loop",
            "parser",
            "pipeline",
            "scheme",
            "scope",
            "server",
        ),
        *("server_state", "tasks", "transport", "url", "__init__"),
    },
    (_PROTOCOL, "RequestResponseCycle"): {
        *("body", "default_headers", "disconnected", "flow", "keep_alive", "message_event", "more_body", "on_response"),
        *("receive", "response_complete", "response_started", "scope", "transport", "__init__"),
    },
    (uvicorn.protocols.http.flow_control, "FlowControl"): {
        *("drain", "pause_writing", "resume_reading", "resume_writing", "write_paused", "__init__"),
    },
    (uvicorn.server, "ServerState"): {"connections", "default_headers", "tasks", "total_requests", "__init__"},
    (uvicorn.config, "Config"): {"load", "loop", "timeout_keep_alive", "__init__"},
}
"""The attributes and methods by module and class. Those that other objects have, too, count as used."""

OTHERS = {"host", "port", "headers"}
"""Names of `Config` that our own objects have."""

IMPORTED = {"Config", "HttpToolsProtocol", "RequestResponseCycle", "STATUS_LINE", "ServerState"}


def members(module: ModuleType, name: str) -> set[str]:
    """The names that a class defines, those of its objects among them."""
    tree = ast.parse(inspect.getsource(getattr(module, name)))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return functions | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """The modules of the server that import from uvicorn."""
    server = Path(transport.__file__).parents[1]
    for path in server.rglob("*.py"):
        if "uvicorn" in (text := path.read_text(encoding="utf-8")):
            tree = ast.parse(text)
            if any(imports(tree)):
                yield path, tree


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn"):
            yield from (imported.name for imported in node.names)


def test_only_the_transport_imports_from_uvicorn_and_only_these_names() -> None:
    found = {path: {*imports(tree)} for path, tree in modules()}
    assert {path.parent for path in found} == {Path(transport.__file__).parent}
    assert set().union(*found.values()) == IMPORTED


@pytest.mark.parametrize(("module", "name"), USED, ids=[name for _, name in USED])
def test_no_other_name_of_a_class_is_used(module: ModuleType, name: str) -> None:
    used = {node.attr for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    overridden = {*vars(Connection), *vars(Exchange)}
    found = (used | overridden) & members(module, name)
    assert found - {one for one in overridden if one.startswith("__")} - OTHERS <= USED[module, name]


@pytest.mark.parametrize(("module", "name"), USED, ids=[name for _, name in USED])
def test_the_installed_release_has_the_names(module: ModuleType, name: str) -> None:
    annotated = set(getattr(getattr(module, name), "__annotations__", ()))
    assert members(module, name) | annotated >= USED[module, name]
