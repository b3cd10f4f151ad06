"""Captured sources and their backfills: positions, leases, and what they append."""
