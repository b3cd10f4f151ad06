"""Validation of arguments, before any query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar, Unpack, get_args

import msgspec

from headrace import store
from headrace.model import conditions
from headrace.model.clock import utc
from headrace.model.conditions import Condition
from headrace.model.conditions.selections import (
    DeadLetterCriteria,
    Filter,
    RangeCriteria,
    SearchCriteria,
    Where,
    check_criteria,
    described,
)
from headrace.model.errors import AlreadyExists, ConfigurationError, InvalidInput
from headrace.model.keys import check_filters, check_key
from headrace.model.pages import MAX_LIMIT, MAX_PAGE_BYTES
from headrace.model.push import Push
from headrace.model.records import Death, GroupedBy
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec, parsed
from headrace.model.text.error_text import MAX_ERROR, storable
from headrace.model.text.masking import HIDDEN, masked_push_url

Spec = TypeVar("Spec", StreamSpec, ConsumerSpec)

MAX_ANSWER_BYTES = MAX_PAGE_BYTES
"""The size in bytes, as text, at which no more entries are added to an answer."""

_LARGEST = 2**63


def filters_of(filter_: Filter) -> tuple[str, ...] | None:
    """Parse key filters. Raises `InvalidFilter`."""
    with argument("filter"):
        return None if filter_ is None else check_filters(filter_)


def of_key(filter_: Filter, key: str | None) -> Filter:
    """Return the filter of messages with exactly this key, if one is given. Raises `InvalidInput`."""
    if key is None:
        return filter_
    if filter_ is not None:
        raise InvalidInput("key and filter exclude each other. Give only one of them.", field="key")
    return check_key(key)


def condition_of(where: Where) -> Condition | None:
    """Parse a condition on the content. Raises `InvalidFilter`."""
    with argument("where"):
        return None if where is None else conditions.parse(where)


@contextmanager
def argument(name: str) -> Iterator[None]:
    """Name the argument in errors about its value."""
    try:
        yield
    except (InvalidInput, ConfigurationError) as error:
        error.field = name
        raise


def in_utc(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the times among criteria to UTC."""
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in criteria.items()}


def check_seq(name: str, seq: int | None) -> None:
    """Raise `InvalidInput` unless it is a seq or None. `name` is that of the argument."""
    if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq < _LARGEST):
        raise InvalidInput(f"{name}={seq!r} is not a seq. A seq is a whole number, and the first is 1.", field=name)


def check_above(above: int) -> None:
    """Raise `InvalidInput` unless it is a seq or 0."""
    if above != 0:
        check_seq("above", above)


def check_limit(limit: int | None) -> None:
    """Raise `InvalidInput` unless it is from 1 to the maximum, or None."""
    if limit is not None and (not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT):
        raise InvalidInput(f"limit={limit!r} must be from 1 to {MAX_LIMIT:,}.", field="limit")


def selection_of(**criteria: Unpack[RangeCriteria]) -> store.Selection:
    """Parse the criteria of messages. Raises `InvalidInput` for an empty range."""
    given = _parsed(RangeCriteria, criteria)
    for name in ("start_seq", "end_seq"):
        check_seq(name, given.get(name))
    for start, end, later in (("start_seq", "end_seq", "greater"), ("start_time", "end_time", "later")):
        first, last = given.get(start), given.get(end)
        if first is not None and last is not None and first > last:
            raise InvalidInput(f"{start}={first} must not be {later} than {end}={last}.", field=end)
    return store.Selection(**given)


def search_of(**criteria: Unpack[SearchCriteria]) -> store.Search:
    """Parse the criteria of a search. Raises `InvalidInput`."""
    given = _parsed(SearchCriteria, criteria)
    after, before = given.get("after"), given.get("before")
    if after is not None and before is not None:
        raise InvalidInput("Give either after or before, not both.", field="before")
    for place in (after, before):
        check_above(0 if place is None else place)
    _check_period(given.get("since"), given.get("until"))
    return store.Search(**given)


def _parsed(kind: type, criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the key filters, the condition and the times among criteria."""
    given = in_utc(check_criteria(kind, criteria))
    return {"filters": filters_of(given.pop("filter", None)), "where": condition_of(given.pop("where", None)), **given}


def _check_period(since: datetime | None, until: datetime | None) -> None:
    """Raise `InvalidInput` if the period is empty."""
    if since is not None and until is not None and since >= until:
        raise InvalidInput(f"since={since} must be before until={until}.", field="until")


def dead_letters_of(**criteria: Unpack[DeadLetterCriteria]) -> DeadLetterCriteria:
    """Parse the criteria of dead letters. Raises `InvalidInput`."""
    for one in described(DeadLetterCriteria):
        if one.limits.get("maxLength") == MAX_ERROR:
            _check_text(one.name, criteria.get(one.name))
    key, reason, seqs = criteria.get("key"), criteria.get("reason"), criteria.get("seqs")
    for seq in seqs or ():
        check_seq("seqs", seq)
    if key is not None:
        check_key(key)
    if reason is not None:
        check_one_of("reason", reason, get_args(Death))
    since, until = utc(criteria.get("since")), utc(criteria.get("until"))
    _check_period(since, until)
    filters, where = filters_of(criteria.get("filter")), condition_of(criteria.get("where"))
    return {**criteria, "filter": filters, "where": where, "since": since, "until": until}


def check_grouping(by: str) -> None:
    """Raise `InvalidInput` unless dead letters can be counted by it."""
    check_one_of("by", by, get_args(GroupedBy))


def check_one_of(name: str, value: str, values: Sequence[str]) -> None:
    """Raise `InvalidInput` unless it is one of these values. `name` is that of the argument."""
    if value not in values:
        raise InvalidInput(f"{name}={value!r} must be one of {', '.join(values)}.", field=name)


def _check_text(name: str, text: Any) -> None:
    """Raise `InvalidInput` unless Postgres can store the text, so that it could be equal to a stored one."""
    if text is not None and storable(str(text), MAX_ERROR) != text:
        raise InvalidInput(
            f"{name} is not a text that is stored: at most {MAX_ERROR:,} characters, without NUL.", field=name
        )


def changed(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    """The settings after the changes, validated. Raises `InvalidInput` or `ConfigurationError`."""
    settings = {("filters" if name == "filter" else name): value for name, value in changes.items()}
    known = settings_of(type(spec))
    editable = [name for name, setting in known.items() if not setting.fixed]
    for name in settings:
        if name not in editable:
            wrong = f"{name} can't be changed" if name in known else f"There is no setting {name!r}"
            raise InvalidInput(f"{wrong}. You can change {', '.join(editable)}.", field=name)
    settings = parsed(type(spec), settings)
    try:
        # msgspec.convert validates the types, except for the condition, which is parsed already.
        plain = {**msgspec.structs.asdict(spec), **settings}
        condition = plain.pop("where", None)
        made = msgspec.convert(plain, type(spec))
        return made if condition is None else msgspec.structs.replace(made, where=condition)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"A setting is not valid: {error}.", field=_field(error)) from error


def pushed(before: Push | None, given: Mapping[str, Any]) -> Push:
    """The given settings of `Push`, merged into the previous ones. Values that are passed in masked form stay as they
    are: the secret, the values of headers, and the URL.

    Raises `InvalidInput` or `ConfigurationError`.
    """
    found = {name: value for name, value in given.items() if name != "secret" or value != HIDDEN}
    if isinstance(found.get("headers"), Mapping):
        found["headers"] = _unmasked(found["headers"], {} if before is None else before.headers)
    if HIDDEN in str(found.get("url")):
        if before is None or found["url"] != masked_push_url(before.url):
            raise InvalidInput(
                f"The push URL has {HIDDEN!r} in it, which stands for a masked part. Write the whole URL."
            )
        del found["url"]
    for name in found:
        if name not in Push.__struct_fields__:
            raise InvalidInput(f"There is no push setting {name!r}; there are {', '.join(Push.__struct_fields__)}.")
    if before is None and "url" not in found:
        raise InvalidInput('push can\'t be so: a push consumer needs a URL: "push": {"url": "https://…"}.')
    found = parsed(Push, found)
    try:
        return msgspec.convert({**({} if before is None else msgspec.structs.asdict(before)), **found}, Push)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"A push setting is not valid: {error}.", field=_field(error)) from error


def _field(error: msgspec.ValidationError) -> str | None:
    """Return the name of the setting in an error of msgspec."""
    found = re.search(r"at `\$\.(\w+)", str(error))
    return found[1] if found else None


def _unmasked(headers: Mapping[str, Any], before: Mapping[str, str]) -> dict[str, Any]:
    """Headers with the current values of those that are masked."""
    unknown = [name for name, value in headers.items() if value == HIDDEN and name not in before]
    if unknown:
        raise InvalidInput(
            f"The header {unknown[0]!r} has the value {HIDDEN!r}, which stands for a masked one. Write its value."
        )
    return {name: before[name] if value == HIDDEN else value for name, value in headers.items()}


def refuse_changes(existing: StreamSpec, wanted: StreamSpec, what: str) -> None:
    """Raise `AlreadyExists` if an existing stream has other settings than the one to be created."""
    old, new = msgspec.structs.asdict(existing), msgspec.structs.asdict(wanted)
    refuse({name: (value, new[name]) for name, value in old.items() if value != new[name]}, what)


def refuse(differing: Mapping[str, tuple[Any, Any]], what: str) -> None:
    """Raise `AlreadyExists` if settings differ: {setting: (existing, wanted)}."""
    if differing:
        raise already_exists(what, differing)


def already_exists(what: str, differing: Mapping[str, tuple[Any, Any]]) -> AlreadyExists:
    """The error about an object that exists, and the settings that differ: {setting: (existing, wanted)}."""
    if not differing:
        return AlreadyExists(f"{what} exists already, with these settings. Edit it, or choose another name.")
    return AlreadyExists.with_settings(what, differing)
