"""Every block of code in the documentation is run by a test: by one of its page, or by those of this file."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import json
import logging
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
import yaml

from docsite import python_api
from docsite.reference import http
from headrace import App, store
from headrace.app import settings
from headrace.cli.tree import build
from headrace.server.monitoring.endpoints import PATHS as MONITORED
from tests.conftest import Connect, Declare
from tests.docs import preludes
from tests.docs.code_blocks import PAGES, ROOT, Block, blocks
from tests.drivers.test_sync import django_connection
from tests.support.readers import publish

RUN_BY = {
    ("docs/backup.md", "sh sql"): "tests/docs/test_backup_page.py",
    ("docs/capture.md", "sh sql python"): "tests/cli/test_capture_page.py",
    ("docs/cli.md", "sh python"): "tests/cli/test_over_http.py",
    ("docs/context.md", "python"): "tests/app/test_app_context_page.py",
    ("docs/fastapi.md", "python sh"): "tests/template/test_template.py",
    ("docs/history.md", "sh json"): "tests/histories/test_history_log.py",
    ("docs/how-to/", "python sql"): "tests/docs/test_howto.py",
    ("docs/http.md", "bash"): "tests/server/test_http_page.py",
    ("docs/privileges.md", "sh sql"): "tests/docs/test_privileges_page.py",
    ("docs/spark.md", "sh sql python"): "tests/spark/test_spark_page.py",
    ("docs/spark-cluster.md", "sh python"): "tests/spark/test_cluster_page.py",
    ("docs/sql.md", "sql"): "tests/docs/test_sql_page.py",
    ("docs/testing.md", "python"): "tests/testing/test_docs.py",
    ("docs/tutorial.md", "python sh bash sql toml json"): "tests/docs/test_tutorial.py",
}
"""Pages, or folders of pages, with the languages of their blocks that a test of their own runs."""

CHECKED = {"python", "sh", "bash", "sql", "yaml", "toml", "json"}
"""Languages whose blocks the tests of this file run or parse."""
_ENVIRONMENT = re.compile(r"^(?:[A-Z_]+=\S* )+")
"""Variables before a command."""
_REDIRECTION = re.compile(r" > [\w./-]+$")
_SHELL = re.compile(r"^(?:\$ )?(?:headrace|pip|curl|make|python3?|psql|docker) ", re.MULTILINE)


def has_a_test(block: Block) -> bool:
    if block.page == "README.md" and "spark" in block.text:
        return True  # tests/spark/test_spark_page.py
    return any(block.page.startswith(page) and block.language in languages.split() for page, languages in RUN_BY)


def to_run(*languages: str) -> list[Block]:
    """The blocks that no other test runs."""
    every = (block for page in PAGES for block in blocks(page))
    return [block for block in every if block.language in languages and block.reason is None and not has_a_test(block)]


def each(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", to_run(*languages), ids=lambda block: block.page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in CHECKED | {"", "text", "dockerfile"}, (
            f"{block.page}: no test knows blocks of {block.language!r}"
        )
        assert block.language or not _SHELL.search(block.text), f"{block.page} has commands in a block without `sh`"


@pytest.mark.parametrize(
    ("page", "test"), [(page, test) for (page, _), test in RUN_BY.items() if (ROOT / page).exists()]
)
def test_the_tests_of_pages_exist_and_read_them(page: str, test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    assert Path(page).name in text


# --- names

PUBLIC = {module.name: set(module.public) for module in python_api.MODULES} | {
    "headrace.testing.plugin": set[str](),  # a plugin of pytest
}
"""The public names of modules."""
_IN_TEXT = re.compile(r"`((?:headrace|headrace_spark)(?:\.[a-z_]+)+(?:\.[A-Z]\w+)?)[`(]")


def is_public(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return name in PUBLIC or last in PUBLIC.get(module, ())


def imported(text: str) -> Iterator[str]:
    """Yield the modules and names of ours that a program imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.partition(".")[0] in {"headrace", "headrace_spark"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_names_of_python_are_public(page: Path) -> None:
    """Those that blocks import, and those in the text, such as `headrace.client.Remote`."""
    programs = [one.text for one in blocks(page) if one.language == "python" and one.reason is None]
    named = {name for text in programs for name in imported(text)}
    named |= {name for name in _IN_TEXT.findall(page.read_text(encoding="utf-8")) if is_of_python(name)}
    assert {name for name in named if not is_public(name)} == set()


def is_of_python(name: str) -> bool:
    """Whether a name leads into the package. Others are of SQL or of telemetry, such as `headrace.streams`."""
    parts = name.split(".")
    module = ROOT / "framework" / "/".join(parts[:2])
    return name[-1].isalnum() and len(parts) > 2 and (module.is_dir() or module.with_suffix(".py").is_file())


def test_a_name_that_is_not_public_would_be_found() -> None:
    text = "from headrace.model.specs import Backoff\nimport headrace.store\nfrom headrace import App"
    assert [name for name in imported(text) if not is_public(name)] == [
        "headrace.model.specs.Backoff",
        "headrace.store",
    ]
    assert is_of_python("headrace.sources.webhook.WebhookSpec")
    assert not is_of_python("headrace.consumer.lag.time")


# --- files


@each("json")
def test_its_json_is_valid(block: Block) -> None:
    one_a_line = all(line.startswith("{") and line.endswith("}") for line in block.text.splitlines())
    for text in block.text.splitlines() if one_a_line else [block.text]:
        json.loads(text)


@each("toml")
def test_its_settings_are_accepted(block: Block, tmp_path: Path) -> None:
    tomllib.loads(block.text)
    (tmp_path / "pyproject.toml").write_text(block.text)
    settings.read(environment={}, directory=tmp_path)


@each("yaml")
def test_its_commands_and_paths_exist(block: Block) -> None:
    for name, value in _pairs(yaml.safe_load(block.text)):
        if name == "command" and value[0] == "headrace":
            accept(value[1:])
        if name == "httpGet":
            assert value["path"].partition("?")[0] in MONITORED


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of all mappings."""
    if isinstance(value, dict):
        yield from value.items()
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _pairs(one)


# --- commands


def accept(words: list[str]) -> None:
    """Check that the command line accepts these words. The command is not run."""
    if "--help" not in words:
        build(words[0]).parse_args([word for word in words if word != "…"], exit_on_error=False, print_error=False)


def _lines(block: Block) -> Iterator[list[str]]:
    for line in block.text.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").partition(" && ")[0]
        command = command.partition(" | ")[2] if command.startswith("echo ") else command
        command = _REDIRECTION.sub("", _ENVIRONMENT.sub("", command))
        if words := shlex.split(command, comments=True):
            yield words


@each("sh", "bash")
def test_its_commands_are_accepted(block: Block) -> None:
    for program, *words in _lines(block):
        check = COMMANDS.get(program)
        assert check is not None, f"No test knows how to check the command {program!r} on {block.page}"
        check(words)


def installable(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"headrace\[([\w,]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= extras.keys()


def made(words: list[str]) -> None:
    assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def requested(words: list[str]) -> None:
    (url,) = (word for word in words if re.match(r"http|\$HEADRACE", word))
    path = re.sub(r"^(?:https?://[^/]+|\$HEADRACE)", "", url).partition("?")[0]
    templates = (re.escape(one).replace(r"\{", "{").replace(r"\}", "}") for one in http.description()["paths"])
    assert any(re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), path) for one in templates), path


def compiled(words: list[str]) -> None:
    """Check code on the command line, or the arguments of one of our programs."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"there is no module {words[1]}"
        if len(words) > 2 and (ROOT / words[1] / words[2] / "command.py").is_file():
            import_module(".".join([*words[1:3], "command"])).parser().parse_args(words[3:])
        return
    assert words[0] == "-c"
    compile(words[1], "command line", "exec")


def about_files(words: list[str]) -> None:
    """Check that the files of ours exist that a command names."""
    for word in words:
        if word.startswith("deploy/"):
            assert list(ROOT.glob(word)), word


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "headrace": accept,
    "pip": installable,
    "make": made,
    "git": lambda words: None,
    "cd": lambda words: None,
    "curl": requested,
    "python": compiled,
    "docker": about_files,
    "cp": about_files,
    "install": about_files,
    "kubectl": about_files,
    "systemctl": about_files,
}


# --- SQL


@each("sql")
@pytest.mark.asyncio
async def test_its_statements_run(block: Block, database: store.Database, connect: Connect, declare: Declare) -> None:
    connection = await connect()
    await connection.execute(preludes.SQL)
    reader = await declare()
    await publish(database, "orders.17")
    await reader.lease(limit=1)
    consumer, lease, seq = await connection.fetchrow("select consumer_id, lease_id, seq from headrace.in_flight")
    statements = block.text.replace(
        "ack(7, array[7340033], array[42])", f"ack({consumer}, array[{lease}], array[{seq}])"
    )
    await connection.execute(statements)


# --- Python


@pytest.fixture
def program(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the programs of pages take from elsewhere."""
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    asyncio.run(_set_up(dsn))
    django = django_connection(dsn)
    handlers = list(logging.getLogger().handlers)
    found = preludes.names()
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(shipping=found["shipping"]))
    yield found
    logging.getLogger().handlers = handlers
    django.close()


async def _set_up(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(preludes.SQL)
    await connection.close()


@pytest.mark.parametrize("page", sorted({block.page for block in to_run("python")}))
def test_its_python_runs(page: str, program: dict[str, Any], dsn: str) -> None:
    awaiting = []
    for block in to_run("python"):
        if block.page == page:
            program["app"] = App()  # blocks show handlers of one name
            code = compile(block.text.replace("postgresql://…", dsn), page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                awaiting.append(code)
            else:
                exec(code, program)
    asyncio.run(_await(awaiting, program, dsn))


async def _await(codes: list[Any], program: dict[str, Any], dsn: str) -> None:
    """Run the blocks that await outside of a function, while an app is connected."""
    if not codes:
        return
    async with App(dsn) as app:
        for code in codes:
            await eval(code, {**program, "app": app})
