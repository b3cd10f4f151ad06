"""Verifications: tables are compared with their streams, and streams are repaired. See `backfill.backfiller`."""
