"""The documentation site: each page has its place, links hold, and generated pages have all that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path, PurePosixPath

import pytest

from docsite import llms, pages, python_api
from docsite.reference import GENERATED, commands, errors, http, metrics, sql
from headrace import store
from headrace.admin import Admin
from headrace.client import Remote
from headrace.model.errors import ERROR_CODES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERS = re.compile(r"`\w+\.\w+`|(?:are those of|selected as for)\s+`|[Ss]ee (?:asyncpg|`)")
"""A docstring that refers to that of another method."""
INDEX = pages.contents(pages.read_index())


# --- pages


def test_the_index_names_every_page_once() -> None:
    listed = [entry.page for entries in INDEX.values() for entry in entries if not entry.page.startswith("../")]
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(listed) == sorted(there), "each page has a line in one section of docs/index.md"
    assert list(INDEX) == ["Tutorial", "How-to guides", "Reference", "Explanation"]


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("docs/http.md", "server.md#limits", "server.md#limits"),
        ("docs/how-to/retries.md", "../handlers.md", "../handlers.md"),
        ("docs/capture.md", "../README.md#how-fast", "project/README.md#how-fast"),
        ("docs/embedding.md", "../examples/app.py", "project/examples/app.py.md"),
        ("README.md", "docs/http.md", "../http.md"),
        ("benchmarks/README.md", "../docs/http.md", "../../http.md"),
        ("docs/http.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/http.md", "#errors", "#errors"),
    ],
)
def test_links_hold_in_the_site(page: str, link: str, there: str) -> None:
    assert (
        pages.relinked(PurePosixPath(page), f"See [it]({link}), and ![it]({link}).")
        == f"See [it]({there}), and ![it]({there})."
    )


def test_code_keeps_what_looks_like_a_link() -> None:
    text = "```python\nhandlers[0](order.md)\n```\n"
    assert pages.relinked(PurePosixPath("README.md"), text) == text


def test_a_table_of_contents_follows_each_section() -> None:
    index = "# Title\n\nIntro.\n\n## Reference\n\n- [One](one.md): about one.\n\n## Explanation\n\n- [Two](../TWO.md): two.\n"
    index = pages.with_entries(index, "Reference", [pages.Entry("Made", "reference/made.md", "from code.")])
    assert [entry.title for entry in pages.contents(index)["Reference"]] == ["One", "Made"]
    whole = pages.with_tables_of_contents(index)
    assert ":caption: Reference\n\nOne <one>\nMade <reference/made>\n" in whole
    assert ":caption: Explanation\n\nTwo <project/TWO>\n" in whole


# --- the reference


@pytest.mark.asyncio
async def test_the_sql_reference_is_that_of_the_database(database: store.Database) -> None:
    functions = await database.fetch("""
        select p.proname::text as name, p.pronargs as arguments, pg_get_function_result(p.oid) as returns,
               obj_description(p.oid) as comment
        from pg_proc as p where pronamespace = 'headrace'::regnamespace""")
    views = await database.fetch("""
        select c.relname::text as name, obj_description(c.oid) as comment,
               array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 order by attnum) as columns
        from pg_class as c where relnamespace = 'headrace'::regnamespace""")
    assert {one["name"]: one["arguments"] for one in functions} == {
        one.name: len(one.arguments) for one in sql.functions()
    }
    assert {one["name"]: one["columns"] for one in views} == sql.views()
    assert {one["name"]: one["comment"] for one in (*functions, *views)} == sql.comments()
    returned = {one["name"]: one["returns"].lower().replace("integer", "int") for one in functions}
    assert returned == {one.name: one.returns.replace("table (", "table(") for one in sql.functions()}


def test_the_command_reference_has_all_commands_with_their_options() -> None:
    page = commands.page()
    usages = re.findall(r"^```text\nheadrace (.*)$", page, re.MULTILINE)
    found = [path for path, _ in commands.commands()]
    assert found == re.findall(r"^## headrace (.*)$", page, re.MULTILINE)
    for path, usage in zip(found, usages, strict=True):
        assert usage.startswith(path), usage
        assert not usage.startswith(f"{path} {path}")
    assert re.search("`--ack-wait( STR)?`: The visibility timeout.", page)  # the oldest cyclopts leaves out the type
    assert "headrace consumer add [OPTIONS] STREAM NAME" in page


def test_the_http_reference_has_all_routes_and_types() -> None:
    page, types = http.page(), http.types_page()
    document = http.description()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`\n" in page
    linked = set(re.findall(r"http-types\.md#(\w+)", page + types))
    headings = {name.lower() for name in re.findall(r"^## (\w+)$", types, re.MULTILINE)}
    assert linked <= headings == {name.lower() for name in document["components"]["schemas"]}


def test_the_error_reference_has_all_exceptions_and_codes() -> None:
    page = errors.page()
    for kind in errors.exceptions():
        assert f"| `{kind.__name__}` |" in page
        assert kind.__doc__, kind
    assert all(f"`{code}`" in page for code in ERROR_CODES)
    assert {one.kind for one in ERROR_CODES.values()} - {None} <= set(errors.exceptions())


def test_the_pages_about_metrics_have_the_metrics_of_the_code() -> None:
    telemetry, server = ((DOCS / page).read_text(encoding="utf-8") for page in ("telemetry.md", "server.md"))
    for name, *_ in metrics.instruments():
        assert name in telemetry or f"`.{name.strip('`').rpartition('.')[2]}`" in telemetry, name
    for name, *_ in metrics.families():
        shortened = (f"`…_{end}`" for end in _ends(name.strip("`")))
        assert name in server or any(end in server for end in shortened), name


def _ends(name: str) -> list[str]:
    words = name.split("_")
    return ["_".join(words[first:]) for first in range(1, len(words))]


def test_every_generated_page_has_a_title_and_ends_with_a_line() -> None:
    for name, generated in GENERATED.items():
        text = generated.page()
        assert text.startswith(f"# {generated.title}\n"), name
        assert text.endswith("\n"), name


# --- the Python API


each_module = pytest.mark.parametrize("module", python_api.MODULES, ids=lambda module: module.name)


@each_module
def test_every_public_name_has_a_docstring(module: python_api.Module) -> None:
    for name, value in module.values():
        assert inspect.getdoc(value) or not (inspect.isclass(value) or inspect.isroutine(value)), name


@each_module
def test_the_docstrings_name_all_arguments(module: python_api.Module) -> None:
    for name, kind in module.values():
        shared = inspect.getdoc(Admin if kind is Remote else kind) or ""  # `Remote` has the methods of `Admin`
        for member, method in inspect.getmembers(kind, inspect.isroutine) if inspect.isclass(kind) else ():
            text = inspect.getdoc(method) or ""
            public = not member.startswith("_") and getattr(method, "__module__", "").startswith("headrace")
            if public and not REFERS.search(text):
                words = set(re.findall(r"\w+", text + shared))
                arguments = set(inspect.signature(method).parameters) - {"self", "cls", "args", "kwargs"}
                missing = {one for one in arguments if not {one, f"{one}s", one.removesuffix("s")} & words}
                assert not missing, f"{name}.{member} does not describe {missing}"


def test_everything_that_the_package_exports_is_on_a_page() -> None:
    import headrace
    import headrace_spark

    listed = {f"{module.name}.{name}" for module in python_api.MODULES for name, _ in module.values()}
    assert {f"headrace.{name}" for name in headrace.__all__} <= listed
    assert {f"headrace_spark.{name}" for name in headrace_spark.__all__} <= listed


def test_docstrings_become_restructuredtext() -> None:
    docstrings = pytest.importorskip("docsite.docstrings", reason="needs the extra `docs`")
    assert docstrings.with_literals("the `connection`s of ``all``") == "the ``connection``\\ s of ``all``"
    lines = ["Do it.", "", "    await app.run()", "", "Args:", "    one: the first.", "", "        more", "", "Text."]
    assert docstrings.with_code_blocks(lines) == [*lines[:2], ".. code-block::", "", *lines[2:]]


# --- llms.txt


def test_language_models_get_all_pages(tmp_path: Path) -> None:
    source, html = tmp_path / "source", tmp_path / "html"
    entries = [pages.Entry(one.title, name, one.description) for name, one in GENERATED.items()]
    entries.append(pages.Entry("The Python API", "reference/python/index.md", "all public names"))
    made = dict.fromkeys(GENERATED, "# Generated\n") | python_api.pages()
    pages.write(source, made, entries)
    llms.write(source, html)
    text = (html / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# Headrace\n\n> A durable message stream .*\n\n## Tutorial\n\n- \[", text)
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+$", text, re.MULTILINE)
    assert all((html / link).is_file() for link in links)
    assert len(links) == len(set(links)) >= 45
    whole = (html / "llms-full.txt").read_text(encoding="utf-8")
    assert all((html / link).read_text(encoding="utf-8").strip() in whole for link in links)
    assert "## headrace.App\n" in whole
    assert "{toctree}" not in whole
