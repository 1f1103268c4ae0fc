"""Agent frameworks, unmodified, against a running daemon. Their environment is their own."""
