"""Schedules of periodic messages: their settings and their state."""

from headrace.model.schedules.records import ScheduleInfo, ScheduleState
from headrace.model.schedules.spec import Missed, ScheduleSpec

__all__ = ["Missed", "ScheduleInfo", "ScheduleSpec", "ScheduleState"]
