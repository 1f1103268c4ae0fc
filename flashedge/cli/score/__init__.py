"""`score`: the command, and files of solutions."""
