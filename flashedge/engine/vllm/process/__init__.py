"""The life of an engine's process, as the daemon sees it: start, heartbeat, end, restart.

`live_process` is one process. `restarts` is the engine over all of its processes.
"""
