#!/usr/bin/env bash
# What do deterministic requests cost on this machine's card, by rollback and by batch-invariant kernels?
#   bash scripts/card/determinism.sh --pair PAIR [--minutes 5] [--kv-bytes N]
# Installs, then compares both with the default engine, at 0, 9, 50 and 100 % deterministic requests.
# Each run is a line of runs.jsonl in its output folder; called again, it goes on there.
# On a CPU the bundled pair rehearses it: batch-invariant kernels do nothing there.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
