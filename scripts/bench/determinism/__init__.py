"""How deterministic requests are, and what that costs. See README.md."""
