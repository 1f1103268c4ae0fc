"""The command calibrate: early exits that lose nothing, from runs with known answers."""
