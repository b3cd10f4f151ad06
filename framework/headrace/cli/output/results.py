"""Prints the results of commands, as JSON or for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace.cli.output.json_output import print_json
from headrace.cli.output.stderr import print_notice
from headrace.cli.output.tables import print_pairs, print_table

T = TypeVar("T")


def print_result(value: object, json: bool, text: str = "", pairs: Iterable[tuple[str, str]] = ()) -> None:
    """Print a result: `value` as JSON, or else a text and pairs of names and values, each if there is any."""
    if json:
        print_json(value)
        return
    if text:
        print(text)
    if rows := list(pairs):
        print_pairs(rows)


def print_list(
    rows: Sequence[T], json: bool, columns: Sequence[str], row: Callable[[T], Sequence[object]], *, empty: str
) -> None:
    """Print a list.

    Args:
        json: whether to print JSON instead of a table.
        columns: the columns of the table, see `print_table`.
        row: returns the cells of a result.
        empty: the notice for an empty list.
    """
    if json:
        print_json(rows)
    elif not rows:
        print_notice(empty)
    else:
        print_table(columns, map(row, rows))


def print_next_page(rows: Sequence[T], limit: int, number: Callable[[T], int]) -> None:
    """Print a notice with the option for the next page, if there may be one."""
    if len(rows) == limit:
        print_notice(f"There may be more. Continue with --above {number(rows[-1])}.")


def print_cut(rows: Sequence[T], limit: int) -> None:
    """Print a notice if a list that has no next page may have been cut."""
    if len(rows) >= limit:
        print_notice(f"There may be more. Show more than {limit:,} with --limit.")
