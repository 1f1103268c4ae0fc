"""One file a panel. A panel is shown a Dashboard and draws it; none of them changes it."""
