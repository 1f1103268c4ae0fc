"""A running daemon over HTTP: the only way in which the CLI and the dashboard reach it."""
