"""The programs of the daemon: what runs next, and what is known of each."""
