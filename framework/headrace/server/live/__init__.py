"""The live state of everything, for screens that are drawn again each second.

`reading` reads the figures of one database. `refreshing` decides when that is done, once for all who ask. `rows` are what
requests get, and `attention` what needs somebody.
"""
