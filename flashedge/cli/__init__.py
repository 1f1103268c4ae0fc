"""The command line. Each file is one group of commands; nothing here imports an engine."""
