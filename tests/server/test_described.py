"""Figures and settings are described once: the terminal, the console and the API show what the description says."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from headrace.cli.observe.display.figures import figure_cell
from headrace.cli.observe.display.source_columns import SOURCES
from headrace.cli.observe.display.tables import CONSUMERS, PROCESSES, STREAMS
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.model.watching.live import ROWS, Unit, figures
from headrace.server.console.files import SCRIPT, static_files

COLUMNS: dict[str, Any] = {"stream": STREAMS, "consumer": CONSUMERS, "process": PROCESSES, "source": SOURCES}


def _of_the_console(name: str) -> dict[str, list[dict[str, Any]]]:
    script = static_files().by_path[SCRIPT].content.decode()
    found = re.search(rf"^const {name} = (.*);$", script, re.MULTILINE)
    assert found is not None
    return dict(json.loads(found[1]))


@pytest.mark.parametrize("kind", ROWS)
def test_the_terminal_and_the_console_have_all_figures_in_one_order(kind: str) -> None:
    described = figures(ROWS[kind])
    assert described
    labels = [column.label for column in COLUMNS[kind]]
    shorts = [figure.short for figure in described.values()]
    assert [label for label in labels if label in shorts] == shorts
    assert [(one["name"], one["title"]) for one in _of_the_console("FIGURES")[kind]] == [
        (name, figure.title) for name, figure in described.items()
    ]


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("value", [None, 0, 1, 1e6])
def test_a_figure_is_shown_also_while_it_is_not_known(kind: str, value: float | None) -> None:
    for name, figure in figures(ROWS[kind]).items():
        row = msgspec.defstruct("Row", [name])(value)
        text = figure_cell(figure, name, row).plain
        assert (text in ("", "–")) == (value is None)


def test_a_figure_has_the_names_of_its_unit() -> None:
    units: dict[Unit, str] = {"rate": "/s", "bytes": "", "seconds": "", "count": "", "seq": ""}
    for row in ROWS.values():
        for figure in figures(row).values():
            assert figure.title.endswith("/s") == (units[figure.unit] == "/s")


def test_the_console_changes_every_setting_that_can_be_changed() -> None:
    for kind, spec, elsewhere in (
        ("consumer", ConsumerSpec, {"push"}),
        ("stream", StreamSpec, {"one_message_per_key"}),
    ):
        editable = {name for name, setting in settings_of(spec).items() if not setting.fixed}
        shown = _of_the_console("SETTINGS")[kind]
        assert {one["name"] for one in shown} == editable - elsewhere
        for one in shown:
            assert one["about"].startswith(settings_of(spec)[one["name"]].description.replace("`", "")[:20])
