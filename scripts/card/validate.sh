#!/usr/bin/env bash
# Proves FlashEdge on this machine's card, and writes one report to attach to an issue:
#   bash scripts/card/validate.sh [--pair PAIR] [--problems FILE] [--output FOLDER] [--rehearse]
# Installs, then runs the engine tests, the profiler, the self-test, exactness, the ladder,
# memory moves and faults. Cut off, the same command goes on.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
