"""The history predictor: learns lengths online from the runs that end."""
