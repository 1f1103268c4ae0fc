#!/usr/bin/env bash
# Proves FlashEdge on this machine's card, and writes one report to attach to an issue:
#   bash scripts/card/validate.sh [--pair PAIR] [--problems FILE] [--output FOLDER] [--rehearse]
# Installs, then runs the engine tests, the profiler, the self-test, exactness, the ladder,
# memory moves and faults. Cut off, the same command goes on.
# --rehearse: every part on a CPU with the bundled pair, in its smallest form.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
if [ "${1:-}" = --help ]; then sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0; fi
bash scripts/setup.sh --dev --quiet --no-profile
exec "$VENV/bin/python" -m scripts.card.validate "$@"
