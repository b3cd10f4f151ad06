"""Encryption of payloads: what is stored, what handlers get, and what neither tells."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AesGcm,
    App,
    Batch,
    ConfigurationError,
    Message,
    Reject,
    Router,
    Transaction,
    UnreadablePayload,
    field,
)
from headrace.cli.main import call
from headrace.model.errors import InvalidInput
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.handlers.transactional import _outgoing
from headrace.testing import Harness
from tests.typed.pages import page_module

KEY, OTHER = AesGcm.new_key(), AesGcm.new_key()
SECRET = "Zyx-Wvu"


class Patient(msgspec.Struct):
    name: str
    age: int = 0


def format_of(codec: Any = None, stream: str = "patients", **options: Any) -> StreamFormat:
    app = App()
    app.stream(stream, Patient, codec=codec or AesGcm({"k1": KEY}), **options)
    return app._formats[stream]


def stored(stored_as: StreamFormat, key: str = "p.1") -> tuple[str, str]:
    data, headers = stored_as.outgoing(key, Patient(SECRET), None)
    return json.dumps(data), json.dumps(headers)


@given(st.text(), st.binary(max_size=100))
def test_what_is_encrypted_decrypts_to_the_same(plain: str, associated: bytes) -> None:
    codec = AesGcm({"k1": KEY})
    sealed, about = codec.encode(plain.encode(), associated)
    assert codec.decode(sealed, about, associated).decode() == plain
    assert len(sealed) == len(plain.encode()) + 28


def test_the_stored_data_is_base64_and_names_the_key() -> None:
    data, headers = stored(format_of())
    assert SECRET not in b64decode(json.loads(data)).decode("latin-1")
    assert json.loads(headers) == {"headrace-codec": {"alg": "A256GCM", "kid": "k1"}}
    assert data != stored(format_of())[0]


def test_a_payload_cannot_be_moved_or_changed() -> None:
    data, headers = stored(format_of())
    assert SECRET in format_of().read("p.1", data, headers)
    sealed = b64decode(json.loads(data))
    changed = json.dumps(b64encode(sealed[:-1] + bytes([sealed[-1] ^ 1])).decode())
    wrong_key = AesGcm({"k1": OTHER})
    for stored_as, key, raw in (
        (format_of(), "p.2", data),
        (format_of(stream="others"), "p.1", data),
        (format_of(wrong_key), "p.1", data),
        (format_of(), "p.1", changed),
        (format_of(), "p.1", '""'),
        (format_of(), "p.1", '"AAAA"'),
        (format_of(), "p.1", '"%"'),
        (format_of(), "p.1", '{"name": "x"}'),
        (format_of(), "p.1", "null"),
    ):
        with pytest.raises(Reject) as caught:
            stored_as.read(key, raw, headers)
        assert SECRET not in str(caught.value)


def test_a_version_cannot_be_changed() -> None:
    data, headers = stored(format_of())
    newer = format_of()
    newer.upcasters.add(1, dict)
    newer.read("p.1", data, headers)
    with pytest.raises(Reject, match="was changed"):
        newer.read("p.1", data, json.dumps(json.loads(headers) | {"headrace-version": 2}))


def test_a_key_is_rotated() -> None:
    data, headers = stored(format_of())
    both = format_of(AesGcm({"k1": KEY, "k2": OTHER}, current="k2"))
    assert SECRET in both.read("p.1", data, headers)
    newer, newer_headers = stored(both)
    assert json.loads(newer_headers)["headrace-codec"]["kid"] == "k2"
    with pytest.raises(UnreadablePayload, match="encrypted with the key 'k2', which this process doesn't have"):
        format_of().read("p.1", newer, newer_headers)


@pytest.mark.parametrize("about", [{}, {"alg": "A256GCM"}, {"alg": "A256GCM", "kid": 7}, {"alg": "ROT13", "kid": "k1"}])
def test_an_unknown_algorithm_or_key_is_retried(about: Any) -> None:
    data, _ = stored(format_of())
    with pytest.raises(UnreadablePayload):
        format_of().read("p.1", data, json.dumps({"headrace-codec": about}))


def test_plain_data_is_taken_only_where_it_is_allowed() -> None:
    with pytest.raises(Reject, match="pass allow_plain=True for older messages"):
        format_of().read("p.1", '{"name":"x"}', None)
    assert format_of(allow_plain=True).read("p.1", '{"name":"x"}', None) == '{"name":"x"}'
    app = App()
    app.stream("patients", Patient)
    with pytest.raises(UnreadablePayload, match="declares 'patients' without a codec"):
        app._formats["patients"].read("p.1", *stored(format_of()))


def test_a_tombstone_does_not_claim_to_be_encoded() -> None:
    stored_as = format_of(one_message_per_key=True, tombstones=True)
    _, headers = stored_as.outgoing(
        "p.1", Patient(SECRET), {"kind": "visit"}
    )  # of a message that was read from the store
    data, headers = stored_as.outgoing("p.1", None, headers)
    assert (data, headers) == (None, {"kind": "visit"})
    assert stored_as.read("p.1", "null", json.dumps(headers)) == "null"


@pytest.mark.parametrize(
    ("keys", "current", "says"),
    [
        ({}, None, "takes keys by their ids"),
        (b"x" * 32, None, "takes keys by their ids"),
        ({"a": b"x" * 16}, None, "The key 'a' must be 32 bytes"),
        ({"a": "not base64"}, None, "The key 'a' must be 32 bytes"),
        ({"a": 5}, None, "The key 'a' must be 32 bytes"),
        ({"": b"x" * 32}, None, "The id '' of a key"),
        ({"a": KEY, "b": OTHER}, None, "current=None must be the id of the key that encrypts, one of 'a', 'b'"),
        ({"a": KEY}, "b", "current='b' must be"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(keys: Any, current: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        AesGcm(keys, current=current)
    assert KEY not in str(caught.value)


def test_a_codec_does_not_print_its_keys() -> None:
    assert repr(AesGcm({"a": KEY, "b": OTHER}, current="b")) == "AesGcm('a', 'b', current='b')"


@pytest.mark.parametrize(
    "where", ["data.age > 3", field("data.age") > 3, "key = 'a' or not (headers.x = 'y' and data.age = 1)"]
)
@pytest.mark.parametrize("stream_first", [True, False])
def test_a_condition_on_encrypted_data_is_refused(where: Any, stream_first: bool) -> None:
    app, router = App(), Router()
    router.consumer("patients", where=where)(admit)

    def declare() -> None:
        app.stream("patients", Patient, codec=AesGcm({"k1": KEY}))

    if stream_first:
        declare()
        with pytest.raises(
            ConfigurationError, match="Consumer 'admit': the database can't look into the payloads of 'patients'"
        ):
            app.include(router)
    else:
        app.include(router)
        with pytest.raises(ConfigurationError, match="the database can't look into the payloads of 'patients'"):
            declare()


async def admit(patient: Patient) -> None: ...


def test_a_condition_on_plain_parts_is_taken() -> None:
    app = App()
    patients = app.stream("patients", Patient, codec=AesGcm({"k1": KEY}))
    patients.consumer(where="key like 'p.%' and headers.ward = 'b'")(admit)


class Strict(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        raise ValueError(f"{name} is unknown")


class Loud(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        raise KeyError(self.name)


@pytest.mark.parametrize(
    ("kind", "data"),
    [(Strict, {"name": SECRET}), (Loud, {"name": SECRET}), (dict[str, int], {SECRET: SECRET}), (int, SECRET)],
)
def test_an_error_of_decoding_does_not_quote_the_payload(kind: Any, data: Any) -> None:
    app = App()
    app.stream("patients", kind, codec=AesGcm({"k1": KEY}))
    with pytest.raises(
        msgspec.ValidationError, match="without its text, since payloads of 'patients' are encoded"
    ) as caught:
        app._formats["patients"]._decode(json.dumps(data))
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


def test_rows_are_not_captured_into_a_stream_whose_handlers_would_refuse_them() -> None:
    for allow_plain in (False, True):
        app = App()
        app.capture("public.patients", into="patients")
        app.stream("patients", Patient, codec=AesGcm({"k1": KEY}), allow_plain=allow_plain)
        if allow_plain:
            app._check_formats()
        else:
            with pytest.raises(ConfigurationError, match="allow_plain=True, or capture into another stream"):
                app._check_formats()


@pytest.mark.asyncio
async def test_everything_that_an_app_publishes_is_encrypted_and_its_handlers_get_the_plain_data(dsn: str) -> None:
    app = App()
    patients = app.stream("patients", Patient, codec=AesGcm({"k1": KEY}))
    seen: list[str] = []

    @app.consumer("visits", publishes="patients")
    async def visit(name: str) -> tuple[str, Patient]:
        return "p.4", Patient(name)

    @patients.consumer()
    async def one(patient: Patient, message: Message) -> None:
        assert SECRET in message.raw
        assert message.headers == {}
        seen.append(patient.name)

    @app.consumer("patients", batch=10, transactional=True)
    async def many(batch: Batch, tx: Transaction) -> None:
        seen.extend(message.data["name"] for message in batch)

    async with Harness(app, dsn) as harness:
        await patients.publish(Patient(SECRET), key="p.1")
        await app.publish("patients", "p.2", Patient(SECRET))
        async with app.transaction() as tx:
            await tx.publish_many("patients", [("p.3", Patient(SECRET))])
        await app.publish("visits", "v", SECRET)
        await harness.drain(raise_errors=True)
        assert seen == [SECRET] * 8
        assert all(SECRET not in str(message) for message in await harness.published("patients"))
        assert [m.data for m in await harness.published(patients)] == [Patient(SECRET)] * 4


def test_dead_letters_and_the_command_line_show_that_data_is_encrypted(
    dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(refuse_some(dsn))
    capfd.readouterr()
    shown = ""
    for command in (
        ["stream", "view", "patients", "--first", "1"],
        ["consumer", "dead-letters", "info", "patients", "refuse", "1"],
        ["consumer", "dead-letters", "ls", "patients", "refuse"],
        ["consumer", "peek", "patients", "refuse"],
    ):
        assert call([*command, "--database", dsn]) == 0, capfd.readouterr().err
        shown += capfd.readouterr().out
    assert shown.count('(encrypted with A256GCM, key "k1")') >= 2, shown
    assert SECRET not in shown


async def refuse_some(dsn: str) -> None:
    """Make dead letters of an encrypted message and of one that should be."""
    app = App()
    patients = app.stream("patients", Patient, codec=AesGcm({"k1": KEY}))

    @patients.consumer()
    async def refuse(patient: Patient) -> None:
        raise Reject("no")

    async with Harness(app, dsn) as harness:
        await patients.publish(Patient(SECRET), key="p.1")
        await app.admin.send("patients", "p.2", json.dumps({"name": "x"}))
        await harness.drain()
        letter, plain = await harness.dead_letters(refuse)
        assert SECRET not in str(letter)
        assert patients.decoded(letter) == Patient(SECRET)
        assert "The payload is not encoded" in (plain.error or "")


@pytest.mark.asyncio
async def test_a_handler_whose_app_lacks_the_codec_says_so(dsn: str) -> None:
    app = App(streams=["patients"])

    @app.consumer("patients")
    async def ignorant(patient: Patient) -> None: ...

    async with Harness(app, dsn) as harness:
        data, headers = stored(format_of())
        await app.admin.send("patients", "p.1", data, headers)
        await harness.drain()
        [outcome] = harness.outcomes()
        assert outcome.kind == "retried"
        assert "doesn't declare 'patients' with its codec" in (outcome.error or "")


@pytest.mark.asyncio
async def test_the_examples_of_the_page_run(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATIENTS_KEY", KEY)
    monkeypatch.setenv("PATIENTS_KEY_2", OTHER)
    page = page_module("encrypt-payloads", tmp_path)
    async with Harness(page.app, dsn) as harness:
        await page.patients.publish(page.Patient(SECRET, "a cold"), key="p.1")
        await page.scans.publish({"left": "x" * 1000}, key="s.1")
        await harness.drain(raise_errors=True)
        assert capsys.readouterr().out == "7 letters\n"
        [scan] = await harness.published("scans")
        assert len(scan.data) < 100
        assert [m.data for m in await harness.published(page.scans)] == [{"left": "x" * 1000}]


@pytest.mark.parametrize("result", [Patient(SECRET), (SECRET,), [("p.1", Patient(SECRET)), SECRET]])
def test_an_error_of_publishing_does_not_quote_the_payload(result: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        _outgoing(result, "patients")
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        list(format_of().outgoing_many([result]))
    assert SECRET not in str(caught.value)
