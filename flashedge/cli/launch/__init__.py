"""`launch`: coding agents of others, pointed at the daemon."""
