"""How sure a run is: pure measures over its answers and scores."""
