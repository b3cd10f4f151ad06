"""Your handler function: its analysis (`handler`), and the layers around each of its calls, from the
outside in (`chain`):

    telemetry ─▶ middleware ─▶ transactional ─▶ dependencies ─▶ runners ─▶ your function

`runners` decides where the function runs. `processes` manages worker processes, and `errands` is
the protocol and the code that runs in them. `dependencies` uses dishka, through `providers` and
`graph`, and only for handlers that take dependencies.
"""
