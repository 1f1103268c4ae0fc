"""The simulated engines, on virtual time: for unit tests and planning only."""
