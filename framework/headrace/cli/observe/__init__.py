"""`headrace observe`: like htop, for streams. Whoever looks on asks by `Administration`, once for everything at each interval.

    watcher ──overview()──▶ history ──picture──▶ boards (tables) on screens ──keys──▶ dialogs ──yes──▶ pause, seek, redrive

`history` and `columns` are plain code; textual begins at `board`.
"""
