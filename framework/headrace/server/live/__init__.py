"""The live state of all databases of a server, read by `headrace.admin.live`.

`refreshing` decides when it is read, once for all who ask. `pacing` bounds what screens read beside it. `attention` says
what needs somebody.
"""
