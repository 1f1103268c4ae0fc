"""What runs next, on which memory: pure functions that engines and runtime call. No clock here."""
