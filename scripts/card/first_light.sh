#!/usr/bin/env bash
# How fast is FlashEdge on this machine's card, beside unmodified vLLM?
#   bash scripts/card/first_light.sh --pair PAIR --problems FILE [--output FOLDER] [--rehearse]
# Installs, then measures the first start, a decode step, a search of the bundled pair and of PAIR,
# and a later start, in some ten minutes. Each figure is written when it is known.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
