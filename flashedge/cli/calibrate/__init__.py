"""`flashedge calibrate`: find when a strategy may stop early."""
