"""Daemons for tests, from the fastest to the most real.

- `fake_daemon`: scripted HTTP replies in this process, for tests of what talks to a daemon.
- `stub_daemon`: a real daemon process without engines, for tests of starting and stopping one.
- `sim_daemon`: a real daemon process over simulated engines, for tests of whole commands.

`tests/support/fake_service.py` is the other side: a service for tests of the real HTTP API.
"""
