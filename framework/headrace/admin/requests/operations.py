"""Operations: what `Admin` does with one object, each described once.

A row of `OPERATIONS` has the name of a method of `Admin`, the request of the HTTP API that does the same, and the command.
The route, its part of the OpenAPI description, the method of `Remote` and the command follow from the row, from the type of
its body, and from the docstring of the method. So a new operation is a method of `Admin` and a row, with its body, in the file
of its subject.

Not here are lists over several databases, calls of more than one request, and what streams. Their routes are in
`headrace.server.routes`, and their calls in `headrace.client.calls`.
"""

from headrace.admin.requests import captures, consumers, databases, messages, schedules, tokens
from headrace.admin.requests.operation import Operation

OPERATIONS: dict[str, Operation] = {
    name: operation
    for subject in (messages, consumers, captures, schedules, databases, tokens)
    for name, operation in subject.OPERATIONS.items()
}
"""The operations by the names of their methods."""
