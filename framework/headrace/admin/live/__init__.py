"""The live state of everything, for screens that are drawn again each second.

`reading` reads the figures of one database, `database` all that is read of one. `rows` makes what screens get of them, and
`snapshot` holds the rows of all databases at one moment.
"""
