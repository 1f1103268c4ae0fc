"""The HTTP API over a `Service`."""
