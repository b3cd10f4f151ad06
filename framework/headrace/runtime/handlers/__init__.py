"""The user's function: understood (`handler`), and with all that is around each of its calls, from the outside in (`chain`):

    telemetry ─▶ middleware ─▶ transactional ─▶ dependencies ─▶ runners ─▶ your function

`runners` says where it runs; those that run in processes of their own are kept by `processes`, and `errands` is what runs there.
`dependencies` asks dishka, by way of `providers` and `graph`, and only for handlers that take some.
"""
