"""How certain a run is, and when it may stop: pure functions of its answers and scores."""
