"""The commands, one file per command or group. Each is imported only when it is called."""
