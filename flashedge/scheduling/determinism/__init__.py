"""When deterministic requests are prefilled and verified. Pure."""
