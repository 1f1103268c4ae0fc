"""The command solve: one problem, or a file of them."""
