"""The bundle of the console's modules: it does what the modules do, and refuses what it doesn't understand."""

from __future__ import annotations

import re

import pytest

from headrace.server.console.bundle import BundleError, bundle
from headrace.server.console.files import PLAIN, SCRIPT, static_files


def test_a_module_stands_after_those_that_it_imports_and_once() -> None:
    modules = {
        "shell.js": 'import { title as name } from "./views/page.js";\n'
        + 'import Page from "./views/page.js";\nimport { get } from "./shared/api.js";\nstart(Page, name, get);\n',
        "views/page.js": 'import { get } from "../shared/api.js";\nexport default function Page() {}\nexport const title = get;\n',
        "shared/api.js": "export async function get() {}\nexport class Problem {}\nconst a = 1;\nexport { a as b };\n",
        "shared/unused.js": "export const unused = 1;\n",
    }
    text = bundle(modules, "shell.js")
    assert re.findall(r"^// (.*)$", text, re.MULTILINE) == ["shared/api.js", "views/page.js", "shell.js"]
    assert "const { title: name } = $views_page;\nconst { default: Page } = $views_page;\n" in text
    assert "const { get: get } = $shared_api;" in text
    assert "return { default: Page, title: title };" in text
    assert "return { get: get, Problem: Problem, b: a };" in text
    assert not re.search(r"\b(?:import|export)\b", text)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ('import * as all from "./other.js";', "Line 1 of the module shell.js"),
        ('\nconst later = () => import("./other.js");', "Line 2 of the module shell.js"),
        ("export let changing = 1;", "Line 1 of the module shell.js"),
        ('export * from "./other.js";', "Line 1 of the module shell.js"),
        ('import { one } from "./nothing.js";', "There is no module nothing.js, which shell.js imports"),
        ('import { one } from "./other.js";', "imports itself, through shell.js and other.js"),
    ],
)
def test_what_the_bundle_would_get_wrong_is_refused(module: str, message: str) -> None:
    modules = {"shell.js": module, "other.js": 'import { two } from "./shell.js";'}
    with pytest.raises(BundleError, match=message):
        bundle(modules, "shell.js")


def test_a_comment_may_name_the_type_of_another_module() -> None:
    text = '/** @type {import("./api.js").ApiError} */\nconst one = 1;\n'
    assert text in bundle({"shell.js": text}, "shell.js")


def test_the_console_is_one_script() -> None:
    script = static_files().by_path[SCRIPT].content
    assert b"\n// views/overview.js\n" in script
    assert sorted(path for path in static_files().by_path if path.endswith(".js")) == sorted([SCRIPT, *PLAIN])
