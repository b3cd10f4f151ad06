"""The data types: keys, filters, conditions, specs, records, outcomes and errors. They do no I/O and import no
other package of Headrace.
"""
