"""The store: streams and consumers with leases, on Postgres. All SQL of Headrace is in this package.

The five verbs are publish, lease, settle, seek and retain. Each has its own module (retain is
`retention`). Server functions in `sql/functions/` do the work, and the modules call them. Lease runs on a
`Database`. The others run on an `Executor`: a `Database`, or the caller's connection inside a transaction.
"""

# Exports what these modules define.
# ruff: noqa: F403

from headrace.store.capture.backfills import *
from headrace.store.capture.captures import *
from headrace.store.capture.failures import *
from headrace.store.capture.verifications import *
from headrace.store.catalog.configurations import *
from headrace.store.catalog.databases import *
from headrace.store.catalog.declarations import *
from headrace.store.catalog.grants import *
from headrace.store.catalog.key_states import *
from headrace.store.catalog.operations import *
from headrace.store.catalog.overview import *
from headrace.store.catalog.push_consumers import *
from headrace.store.catalog.recent_events import *
from headrace.store.catalog.schedules import *
from headrace.store.catalog.secrets import *
from headrace.store.catalog.sessions import *
from headrace.store.catalog.sources import *
from headrace.store.catalog.states import *
from headrace.store.catalog.tokens import *
from headrace.store.catalog.workers import *
from headrace.store.database.database import *
from headrace.store.database.listener import *
from headrace.store.database.migrations import *
from headrace.store.database.ownership import *
from headrace.store.database.revisions import *
from headrace.store.database.schema import *
from headrace.store.maintenance.key_indexes import *
from headrace.store.maintenance.leader import *
from headrace.store.maintenance.retention import *
from headrace.store.maintenance.schedule import *
from headrace.store.maintenance.vacuum import *
from headrace.store.maintenance.watermark import *
from headrace.store.messages.cancel import *
from headrace.store.messages.check_in import *
from headrace.store.messages.completions import *
from headrace.store.messages.dead_letters import *
from headrace.store.messages.erase import *
from headrace.store.messages.jobs import *
from headrace.store.messages.journeys import *
from headrace.store.messages.lease import *
from headrace.store.messages.peek import *
from headrace.store.messages.publish import *
from headrace.store.messages.replay import *
from headrace.store.messages.scheduled import *
from headrace.store.messages.search import *
from headrace.store.messages.seek import *
from headrace.store.messages.settle import *
from headrace.store.messages.transactions import *
from headrace.store.watching.audit import *
from headrace.store.watching.live import *
from headrace.store.watching.samples import *
from headrace.store.watching.waiting import *
