"""What stays of a run: its events, its result, the store on disk."""
