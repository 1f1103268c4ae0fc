#!/usr/bin/env bash
# Trains a verifier for GENERATOR on this machine's card, and judges it on unseen problems.
#   bash scripts/card/train_prm.sh --generator FOLDER --samples FILE --problems FILE [--minutes 8]
# Installs, then draws solutions of the problems, trains on --samples (or on solutions that it draws
# of --train-problems), merges, judges and writes the verifier's card (scripts/train_prm/README.md).
# --rehearse: every part on a CPU with the bundled generator, in its smallest form.
source "$(dirname "${BASH_SOURCE[0]}")/install_and_run.sh"
