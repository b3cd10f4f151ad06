"""The reach of a stream on more cores, with more processes, consumers and keys, and with larger payloads.

A process makes one call of the store after the other: it publishes batches, or leases and acks them. A model of queues
(`model`) predicts the rate of many such processes from the measured costs of single calls (`measure`, `client`).
"""
