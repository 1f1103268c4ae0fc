"""`flashedge lengths`: what predicts how long outputs get."""
