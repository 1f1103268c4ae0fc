#!/usr/bin/env bash
# What does each way of drafting gain on this machine's card, alone and together?
#   bash scripts/card/generators_half.sh --pair PAIR --problems FILE [--minutes 13] [--rehearse]
# Installs, then runs searches of PAIR and of the bundled pair, with ample and with scarce KV memory,
# and two unmodified `vllm serve` for the same trees. Each search is written when it is done.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
