"""The command doctor: what is wrong on this machine, and how to fix it."""
