"""Your handler function: its analysis (`handler`), and the layers around each of its calls, from the
outside in:

    telemetry ─▶ middleware ─▶ transactional ─▶ dependencies ─▶ runners ─▶ your function

`runners` decides where the function runs. `worker_processes` manages worker processes, and
`worker_protocol` has the protocol and the code that runs in them. `dependencies` uses dishka, through
`providers` and `graph`, and only for handlers that take dependencies.
"""
