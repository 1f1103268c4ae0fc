"""The daemon as a process: its life, its control from outside, its files."""
