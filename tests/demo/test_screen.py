"""The live picture of the demo."""

from __future__ import annotations

import io

from rich.console import Console

from headrace.cli.demo.scenario import Lane, State
from headrace.cli.demo.screen import ROWS, _picture


def test_the_picture_fits_a_terminal_and_shows_lanes_of_each_process() -> None:
    lanes = [Lane(1, seq, f"git.shop.src/file{seq % 20}%2Epy", 1) for seq in range(100)]
    lanes.append(Lane(2, 100, "git.shop.a\x1b[31m/very/" + "long/" * 20 + "path%2Epy", 2))
    state = State(total=200, published=150, handled=40, dead=1, lanes=lanes, processes=2, events=[(1.5, "it begins")])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_picture("shop", state))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 3 + 1 + ROWS + 1 + 1
    assert "lag 109 messages" in lines[1]
    assert "of 21 keys, in 2 workers" in lines[2]
    assert sum(line.startswith("process 1") for line in lines) == ROWS // 2
    (again,) = [line for line in lines if line.startswith("process 2")]
    assert "attempt 2" in again
    assert "\x1b" not in again
    assert "and 4 behind it" in "\n".join(lines)
    assert "1.5 s" in lines[-1]
