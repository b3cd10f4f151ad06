"""Paths that two readers may read differently: a check and the router, or a proxy and the server."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.errors import Problem
from headrace.server.options import Options
from headrace.server.slashes import read_path, unmarked
from tests.server.calling import Api
from tests.support.paths_as_sent import ask

pytestmark = pytest.mark.asyncio

STEPS = st.lists(
    st.sampled_from(["v1", "a", "%2F", "%2f", "a%2Fb", "%2e", ".", "..", "%25", "%252F", "é", "%C3%A9", "%", "%zz", "%00", ""]), max_size=6
)  # fmt: skip


async def _token(api: Api, name: str = "ops", *scopes: str) -> dict[str, str]:
    """Make a token in the database, and return the header with it."""
    made = await api.server.app.admin.create_token(name, scopes or ("admin",))
    api.server.access.changed(made.id)
    return {"authorization": f"Bearer {made.token}"}


async def _recorded(api: Api, ops: dict[str, str]) -> list[tuple[str, str | None]]:
    _, _, found = await ask(api.server, "GET", "/v1/audit", headers=ops)
    return [(entry["action"], entry["actor"]) for entry in found["data"]]


ODD = (
    "//v1/{}", "///v1/{}", "/v1//{}", "/./v1/{}", "/x/../v1/{}", "/%2e/v1/{}", "/v1/%2e/{}", "/v1%2F{}", "/%2Fv1/{}", "/V1/{}", "/%76%31/{}/",
    "/v1/{};x=1", "/\\v1/{}", "/v1/{}%2F", "/v1/{}//",
)  # fmt: skip
"""Ways to write a path that some program reads as `/v1/…`."""


async def test_no_spelling_of_a_path_changes_anything_without_an_actor(api: Api) -> None:
    await api.stream()
    await api.consumer()
    ops = await _token(api)
    before = await _recorded(api, ops)
    for number, odd in enumerate(ODD):
        for path, body in (
            ("tokens", {"name": f"new-{number}", "scopes": ["admin"]}),
            ("streams/orders/consumers/ship/pause", {}),
        ):
            status, _, _ = await ask(api.server, "POST", odd.format(path), body, ops)
            recorded = await _recorded(api, ops)
            if status < 300:
                assert recorded[0][1] == "ops", odd
            else:
                assert (status, len(recorded)) == (404, len(before)), (odd, path)
            before = recorded


async def test_no_spelling_of_a_path_passes_without_a_token(api: Api) -> None:
    await api.stream()
    await _token(api)
    for odd in ODD:
        for method, path in (("GET", "streams"), ("GET", "me"), ("POST", "streams/orders/messages"), ("GET", "live"),
                             ("OPTIONS", "streams"), ("HEAD", "streams")):  # fmt: skip
            status, _, _ = await ask(
                api.server, method, odd.format(path), {"key": "k", "data": 1} if method == "POST" else None
            )
            assert status in (401, 403, 404), (odd, method, path)


async def test_no_spelling_of_a_path_evades_the_limit_of_a_token(api: Api) -> None:
    await api.stream()
    ops = await _token(api)
    api.server.limits._per_token = 0
    try:
        for odd in ODD:
            status, _, _ = await ask(api.server, "GET", odd.format("streams"), headers=ops)
            assert status in (404, 429), odd
    finally:
        api.server.limits._per_token = 100


async def test_a_path_with_an_empty_step_is_refused_in_every_plane(api: Api) -> None:
    """A proxy that merges slashes and one that doesn't agree with the server then."""
    await api.stream()
    await api.consumer()
    for method, path in (
        ("GET", "//v1/streams"), ("POST", "/v1//streams/orders/messages"), ("POST", "/v1/streams//messages"),
        ("POST", "//v1/webhook/shop"), ("GET", "//metrics"), ("GET", "//health"), ("GET", "//console/"), ("GET", "/console//static/x"),
        ("GET", "/console/%2e%2e/static//x"),
    ):  # fmt: skip
        status, _, answer = await ask(api.server, method, path, {} if method == "POST" else None)
        assert (status, answer["code"]) == (404, "not_found"), path


async def test_a_slash_that_is_encoded_is_part_of_a_name_in_every_plane(api: Api) -> None:
    await api.stream()
    await api.consumer()
    key = {"key": "a/b//c", "data": 1}
    assert (await ask(api.server, "POST", "/v1/streams/orders/messages", key))[0] == 200
    for end in ("", "/"):
        found = await ask(api.server, "GET", f"/v1/streams/orders/messages/a%2Fb%2f%2Fc{end}")
        assert found[2]["key"] == "a/b//c"
    for path in ("/v1/streams%2Forders/messages", "/v1/streams/orders%2Fmessages", "/v1%2fstreams/orders/messages"):
        assert (await ask(api.server, "POST", path, key))[0] in (404, 405), path
    status, _, answer = await ask(api.server, "POST", "/v1/streams/orders/consumers/a%2Fb/receive", {})
    assert (status, answer["code"]) == (404, "unknown_consumer")
    assert "'a/b'" in answer["summary"]


@pytest.mark.parametrize("root", ["/headrace", "/v1", "/a/b"])
async def test_a_mounted_server_reads_the_path_below_its_mount_point_only(api: Api, root: str) -> None:
    await api.stream()
    ops = await _token(api)
    assert (await ask(api.server, "GET", f"{root}/v1/streams/orders/", headers=ops, root_path=root))[0] == 200
    assert (await ask(api.server, "GET", f"{root}/v1/streams", root_path=root))[0] == 401
    for path in (f"{root}//v1/streams", f"{root}/{root}/v1/streams", f"{root}%2Fv1/streams"):
        assert (await ask(api.server, "GET", path, headers=ops, root_path=root))[0] == 404, path


async def test_no_header_changes_what_a_method_or_a_path_is(api: Api) -> None:
    await api.stream()
    ops = await _token(api)
    for header in ("x-http-method-override", "x-method-override", "x-http-method", "x-original-url", "x-rewrite-url"):
        for value in ("DELETE", "/v1/streams/orders"):
            assert (await ask(api.server, "POST", "/v1/streams/orders", {}, {**ops, header: value}))[0] == 405
    assert (await ask(api.server, "POST", "/v1/streams/orders?_method=DELETE", {}, ops))[0] in (405, 422)
    assert (await ask(api.server, "GET", "/v1/streams/orders", headers=ops))[0] == 200


async def test_the_name_of_a_change_in_the_console_is_no_word_of_the_client(api: Api) -> None:
    claims = {"x-headrace-console": "1", "sec-fetch-site": "same-origin"}
    await ask(api.server, "POST", "/v1/streams", {"name": "open"}, claims)
    ops = await _token(api)
    await ask(api.server, "POST", "/v1/streams", {"name": "claimed"}, {**ops, **claims})
    signed_in = await api.client.post("/v1/session", json={"token": ops["authorization"][7:]}, headers=claims)
    cookie = {"cookie": signed_in.headers["set-cookie"].partition(";")[0], **claims}
    await ask(api.server, "POST", "/v1/streams", {"name": "signed-in"}, cookie)
    _, _, found = await ask(api.server, "GET", "/v1/audit?action=stream.create", headers=ops)
    assert {one["object"]["name"]: (one["actor"], one["via"]) for one in found["data"]} == {
        "open": (None, "http"), "claimed": ("ops", "http"), "signed-in": ("ops", "console"),
    }  # fmt: skip


async def test_a_user_behind_a_proxy_receives_nothing(dsn: str) -> None:
    from headrace import App
    from headrace.server.asgi import Server

    options = Options(
        allowed_hosts=("headrace",), proxy_user_header="X-User", proxy_from=("10.0.0.0/8",), proxy_token="people"
    )
    app = App(dsn, streams=["orders"])
    server = Server(app, options)
    async with app.running():
        await app.admin.create_token("people", ["admin"])
        user = {"x-user": "ada"}
        own = {**user, "x-headrace-console": "1", "sec-fetch-site": "same-origin"}
        assert (await ask(server, "POST", "/v1/streams/orders/consumers", {"name": "ship"}, own, client="10.1.1.1"))[
            0
        ] == 201
        assert (
            await ask(server, "POST", "/v1/streams/orders/messages", {"key": "k", "data": 1}, own, client="10.1.1.1")
        )[0] == 200
        _, _, consumer = await ask(server, "GET", "/v1/streams/orders/consumers/ship", headers=user, client="10.1.1.1")
        for name in ("ship", consumer["id"]):
            for path in (
                f"/v1/consumers/{name}/receive",
                f"/api/consumers/{name}/receive",
                f"/v1/http-consumers/{name}/next",
            ):
                status, _, _ = await ask(
                    server, "GET", path, headers=user, client="10.1.1.1"
                )  # an image of another site
                assert status == 401, path
        assert (await app.admin.consumer("orders", "ship")).num_ack_pending == 0


@pytest.mark.parametrize("root", ["", "/r"])
@given(steps=STEPS)
async def test_the_steps_of_a_path_are_those_of_the_wire(root: str, steps: list[str]) -> None:
    raw = f"{root}/{'/'.join(steps)}"
    while steps and not steps[-1]:
        steps = steps[:-1]
    scope = {"path": unquote(raw), "raw_path": raw.encode(), "root_path": root}
    if "" in steps:
        with pytest.raises(Problem, match="empty step"):
            read_path(scope)
    else:
        assert [unmarked(step) for step in read_path(scope).split("/")[1:]] == (
            [unquote(step) for step in steps] or [""]
        )
