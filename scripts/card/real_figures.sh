#!/usr/bin/env bash
# How right is PAIR on real problems on this machine's card, by votes and searches?
#   bash scripts/card/real_figures.sh --pair PAIR --problems GSM8K --more MATH500 [--minutes 8.5] [--rehearse]
# Installs, then solves the smallest table that counts (200 and 100 problems), then what has less
# worth. Each answer is written when it is there, so further minutes add to the same table.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
