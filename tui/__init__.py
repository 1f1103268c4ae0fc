"""The dashboard. It knows a daemon only through the client; its state is a fold over events."""
