"""Many problems through the daemon: what was asked, what is done, what may go on."""
