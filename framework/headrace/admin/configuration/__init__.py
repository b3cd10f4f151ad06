"""Configuration as code: files that declare streams, consumers, sources, tokens and grants.

`read_documents` and `declared` read files, `plan` compares them with databases, `apply` makes the databases as they say, and
`export` writes what exists as such a file. `parts` finds out what belongs to which database. `json_schema` describes files to editors.

The `fields` of objects follow from the settings of the specs. `objects` has one module for each kind of object.
"""

from headrace.admin.configuration.applying import DeletionRefused, PartlyApplied, PlanChanged, apply, require_allowed
from headrace.admin.configuration.declared import Declared, declared, read
from headrace.admin.configuration.documents import MAX_BYTES, Problems, decoded, read_documents
from headrace.admin.configuration.exporting import Exported, export
from headrace.admin.configuration.plans import Plan, plan
from headrace.admin.configuration.schema import json_schema
from headrace.admin.configuration.steps import Change, FieldChange

__all__ = [
    "MAX_BYTES",
    "Change",
    "Declared",
    "DeletionRefused",
    "Exported",
    "FieldChange",
    "PartlyApplied",
    "Plan",
    "PlanChanged",
    "Problems",
    "apply",
    "declared",
    "decoded",
    "export",
    "json_schema",
    "plan",
    "read",
    "read_documents",
    "require_allowed",
]
