"""A worker that runs as a database role with grants: tests of workers, run as such a role, and the end of its grants.

`python -m pytest -p tests.support.as_role tests/runtime/test_leases.py` does the same with any file of this directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.errors import NotGranted
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Gate, Seen, running
from tests.runtime.test_batches import (
    test_a_batch_can_set_the_outcome_of_one_message,
    test_a_list_that_the_handler_returns_has_the_outcome_of_each_message,
)
from tests.runtime.test_batches_that_fail import test_bisecting_finds_the_failing_message_and_acks_the_others
from tests.runtime.test_key_handlers import test_a_key_handler_gets_each_key_s_run_in_order
from tests.runtime.test_leases import test_a_settle_that_is_lost_is_tried_again_and_nothing_is_handled_twice
from tests.runtime.test_outcomes import (
    test_a_message_comes_again_with_its_attempt_counted_when_its_handler_raises,
    test_a_reject_raised_or_returned_is_a_dead_letter_at_once,
    test_a_retry_sets_the_delay_and_counts_the_attempt,
    test_after_max_deliver_attempts_it_is_a_dead_letter_with_error_and_traceback,
    test_an_exhausted_message_may_block_its_key_or_be_dropped,
    test_an_extension_holds_the_lease_for_ack_wait_from_now,
)
from tests.runtime.test_transactions import (
    app,
    test_a_handler_s_write_its_publish_and_its_ack_are_there_together,
    test_a_lost_lease_rolls_back_the_transaction,
    test_many_messages_are_each_in_a_transaction_of_their_own,
)
from tests.support.as_role import run_as_role
from tests.support.roles import as_role

__all__ = [
    "app",
    "run_as_role",
    "test_a_batch_can_set_the_outcome_of_one_message",
    "test_a_handler_s_write_its_publish_and_its_ack_are_there_together",
    "test_a_key_handler_gets_each_key_s_run_in_order",
    "test_a_list_that_the_handler_returns_has_the_outcome_of_each_message",
    "test_a_lost_lease_rolls_back_the_transaction",
    "test_a_message_comes_again_with_its_attempt_counted_when_its_handler_raises",
    "test_a_reject_raised_or_returned_is_a_dead_letter_at_once",
    "test_a_retry_sets_the_delay_and_counts_the_attempt",
    "test_a_settle_that_is_lost_is_tried_again_and_nothing_is_handled_twice",
    "test_after_max_deliver_attempts_it_is_a_dead_letter_with_error_and_traceback",
    "test_an_exhausted_message_may_block_its_key_or_be_dropped",
    "test_an_extension_holds_the_lease_for_ack_wait_from_now",
    "test_bisecting_finds_the_failing_message_and_acks_the_others",
    "test_many_messages_are_each_in_a_transaction_of_their_own",
]


@pytest_asyncio.fixture
async def role(database: store.Database) -> AsyncIterator[str]:
    """A role without grants. There is a consumer `ship` of the stream `orders`."""
    name = f"app_{uuid4().hex[:12]}"
    await database.fetch(f"create role {name} login password 'secret'")
    await store.create_stream(database, "orders")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))
    yield name
    await database.fetch(f"drop owned by {name}")
    await database.fetch(f"drop role {name}")


@pytest.mark.asyncio
async def test_a_worker_whose_grant_ends_stops_with_the_command_that_gives_it_back(
    database: store.Database, role: str
) -> None:
    """Its messages are redelivered to a worker that may."""
    for privilege in ("consume", "publish"):
        await store.grant(database, privilege, role, ["orders"])
    app, seen, gate = App(as_role(database.dsn, role)), Seen(), Gate()

    @app.consumer("orders", name="ship")
    async def ship(number: int) -> None:
        seen.note(number)
        if number == 1:
            await gate.wait()

    async def until_revoked() -> None:
        async with running(app):
            await app.publish("orders", "a", 1)
            await seen.until(1)
            await store.revoke(database, "consume", role)
            gate.open()
            await app.idle()

    with pytest.raises(BaseExceptionGroup) as caught:
        await until_revoked()
    command = f"headrace grant consume {role} --stream orders"
    assert caught.group_contains(NotGranted, match=f"may not consume the stream 'orders'.*{command}")
    await store.grant(database, "consume", role, ["orders"])
    await database.fetch("update headrace_internal.leases set expires_at = now() - interval '1 second'")
    async with running(app):
        await app.publish("orders", "a", 2)
        await seen.until(3)
        await app.idle()
    assert seen.notes == [1, 1, 2]
