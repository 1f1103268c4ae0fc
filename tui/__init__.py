"""The dashboard: it knows a daemon only through the client, and its state is a fold over events."""
