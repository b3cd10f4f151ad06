"""Requests that are generated from the API's description, and checks that the answers agree with it."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import hypothesis.errors
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.model.errors import ERROR_CODES

TIMEOUT = 60.0
"""Seconds for which a response is waited for. Schemathesis waits 10."""


def an_error_is_one_of_the_contract(_: Any, response: Any, case: Any) -> None:
    """Check that an error has a code of the table with its status, and that a 422 names a field."""
    if response.status_code < 400 or case.operation.path in ("/health", "/ready"):
        return
    body = response.json()
    code = ERROR_CODES.get(body["code"])
    if code is None or code.status != response.status_code:
        raise Failure(operation=case.operation.label, title="A code that is not in the table", message=str(body))
    if response.status_code == 422 and not body.get("validation_errors"):
        raise Failure(operation=case.operation.label, title="A 422 that names no field", message=str(body))


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    an_error_is_one_of_the_contract,
]


def operations_of(url: str) -> list[Any]:
    """Return the operations that the server at a URL describes.

    The last ones create tokens, because all later calls need one from then on.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=TIMEOUT)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    operations.sort(key=lambda operation: "/tokens" in operation.path)
    return operations


def ask(url: str, operation: Any, mode: GenerationMode, examples: int, *, seed: int | None = None) -> int:
    """Send generated requests to one operation, and check the answers. Returns the number of requests.

    Args:
        examples: the number of generated requests.
        seed: the seed of the generator. Without one, the requests are the same each time.
    """
    asked = 0
    with requests.Session() as session:
        for path, body in (
            ("/v1/streams", {"name": "mystream"}),
            ("/v1/streams/mystream/consumers", {"name": "us_orders"}),
            ("/v1/streams/mystream/messages", {"key": "a", "data": 1}),
        ):
            session.post(url + path, data=json.dumps(body))

        @hypothesis.settings(
            max_examples=examples,
            database=None,
            derandomize=seed is None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode), real=hypothesis.strategies.booleans())
        def send(case: Any, real: bool) -> None:
            nonlocal asked
            if real:
                _aim(case)
            _hurry(case)
            asked += 1
            response = case.call(base_url=url, session=session, timeout=TIMEOUT)
            case.validate_response(response, checks=CHECKS)

        try:
            (send if seed is None else hypothesis.seed(seed)(send))()
        except hypothesis.errors.Unsatisfiable:
            assert mode == GenerationMode.NEGATIVE, operation  # an operation without input has no invalid input
    return asked


def _aim(case: Any) -> None:
    """Replace generated names by those of objects that exist."""
    existing = {"stream": "mystream", "consumer": "us_orders", "key": "a", "seq": 1}
    for name in case.path_parameters or {}:
        if name in existing:
            case.path_parameters[name] = existing[name]


def _hurry(case: Any) -> None:
    """Do not wait for messages, and push to no endpoint."""
    for place in (case.query, case.body):
        if isinstance(place, dict):
            for name in ("wait_for", "url", "push"):
                place.pop(name, None)
