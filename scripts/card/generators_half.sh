#!/usr/bin/env bash
# What does each way of drafting gain on this machine's card, alone and together?
#   bash scripts/card/generators_half.sh --pair PAIR --problems FILE [--minutes 13] [--rehearse]
# Installs, then runs searches of PAIR and of the bundled pair, with ample and with scarce KV memory,
# and two unmodified `vllm serve` for the same trees. Each search is written when it is done.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
if [ "${1:-}" = --help ]; then sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0; fi
bash scripts/setup.sh --dev --quiet --no-profile
exec "$VENV/bin/python" -m scripts.card.generators_half "$@"
