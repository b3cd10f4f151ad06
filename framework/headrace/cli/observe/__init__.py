"""`headrace observe`: a terminal monitor for streams, like htop. It calls `Administration.snapshot` once per interval.

    LiveApp ──poll──▶ LiveSnapshot ──▶ tables on screens ──keys──▶ dialogs ──yes──▶ pause, seek, redrive

command    the command, which checks its options
live_app   fetches a snapshot at each interval, and shows it on all screens
observer   the application: theme, keys and first screen
display/   columns, formats and colors, a table that can be updated, and the details of one row
screens/   the screens, their dialogs, and the actions that the keys start
"""
