"""Runs: what a request asks for (request/), how a run is driven (drive/), where its KV memory comes
from (kv/), what stays of it (records/). `service.py` is what the API calls."""
