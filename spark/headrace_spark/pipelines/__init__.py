"""Ready pipelines: archive, replay, backfill and aggregate."""
