"""`flashedge bench`: measure optimizations, and loads of many programs."""
