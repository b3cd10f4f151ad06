"""The reports of streaming queries: how far they lag behind their streams, and how fast they are."""

from headrace_spark.progress.listener import LagReport, report_lag

__all__ = ["LagReport", "report_lag"]
