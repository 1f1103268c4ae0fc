"""One file per panel. A panel draws a Dashboard and never changes it."""
