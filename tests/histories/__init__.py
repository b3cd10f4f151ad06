"""A checker of histories: `python -m tests.histories DIR` decides whether the promises were kept.

It is written from docs/explanation/promises.md and from the format in docs/history.md. It imports nothing of Headrace, so
that a fault of Headrace can't hide itself.

    reading   files of several processes ─▶ lines in the order of their clock
    filters   which keys a consumer receives
    columns   a few bytes for each message that was seen
    outcomes  what was published and settled, until it is leased or answered
    keys      the messages of a key that are leased and not settled
    consumer  the rules of one consumer
    checker   lines ─▶ violations
    evidence  a violation ─▶ the lines that show it
"""
