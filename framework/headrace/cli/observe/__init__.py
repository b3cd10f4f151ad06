"""`headrace observe`: a terminal monitor for streams, like htop. It calls `Administration` once per
interval for everything.

    watcher ──overview()──▶ history ──picture──▶ boards (tables) on screens ──keys──▶ dialogs ──yes──▶ pause, seek, redrive

`history` and `columns` are plain code. textual is used from `board` on.
"""
