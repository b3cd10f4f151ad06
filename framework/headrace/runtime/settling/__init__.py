"""Settling: what handlers decide becomes outcomes in the store, and leases are extended until then."""
