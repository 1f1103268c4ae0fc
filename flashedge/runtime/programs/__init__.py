"""The programs of the daemon: who asks, what runs next, and what is known of each."""
