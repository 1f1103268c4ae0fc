"""Runs: what is asked (spec), who drives it (driver), who watches (broker), what stays (store)."""
