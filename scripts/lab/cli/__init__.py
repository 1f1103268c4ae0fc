"""`flashedge bench`, `simulate` and `models eval`. The CLI finds them in a checkout alone."""
