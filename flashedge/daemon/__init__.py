"""The daemon as a process: how it runs, how others control it, which files it writes."""
