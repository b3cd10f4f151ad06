"""How `run` and `serve` run: as one process, as several, or restarted when code changes.

app_loader  imports the application
event_loop  runs async functions
supervisor  the parent of several processes, which replaces those that die
reload      the parent of one process, which restarts it when files change
children    starts and signals child processes
child_info  what a child process gets from its parent
ready_file  a file that exists while the process is ready
"""
