"""Sources: where messages come from that nobody publishes. Plain code: what a webhook source is, whose signatures it trusts, and what
it makes of a delivery. It is the server that takes deliveries in.
"""
