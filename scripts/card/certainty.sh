#!/usr/bin/env bash
# What does each kind of certainty save on recorded answers of this machine's pair?
#   bash scripts/card/certainty.sh --samples FILE --pair PAIR --problems FILE [--skip N] [--limit 1000] [--cut 512] [--minutes 5] [--rehearse]
# Installs, then adds confidences, scores and probes to the answers, judges all kinds of certainty
# by them, and solves some problems live. Cut off, the same command goes on.
# --rehearse: six problems on a CPU with the bundled pair, whose figures say nothing.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
