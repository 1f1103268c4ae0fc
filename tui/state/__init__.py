"""What the dashboard knows: pure folds over events and status replies."""
