"""Sources of messages outside of `publish`: webhooks and captured tables. The webhook part is plain
code without I/O: a source's settings, the check of signatures, and the message that is made of a
delivery. The server receives the deliveries.
"""
