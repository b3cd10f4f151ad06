"""What an endpoint is sent."""

from __future__ import annotations

import pytest

from tests.server.push.endpoints import Endpoint, Pushed

pytestmark = pytest.mark.asyncio


async def test_a_message_comes_in_the_shape_that_receive_gives(pushed: Pushed, endpoint: Endpoint) -> None:
    await pushed.declare(endpoint.url)
    await pushed.app.publish("orders", "us.1", {"n": 1}, headers={"trace": "abc"})
    (request,) = await endpoint.until(1)
    print(request.headers, request.body)
