#!/usr/bin/env bash
# What does each FlashTTS optimization bring on an NVIDIA card? The paper's three pairs, measured:
#   bash scripts/bench/flashtts/card.sh PROBLEMS.jsonl [PAIR…]
# PROBLEMS: JSON lines of problem and answer. For each pair: the profile of the card, then every rung
# of the ladder at N paths, A B A B, then runs/flashtts/card-PAIR.md. N=8,64,512, LIMIT=20 problems,
# KV="plan" and ROUNDS=2 may be set. Cut off, the same command goes on. Not run yet: no card was at hand.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$ROOT"
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
if [ $# = 0 ] || [ "$1" = --help ]; then sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0; fi
PROBLEMS=$1
shift
if [ $# = 0 ]; then set -- math-1.5b+skywork-1.5b math-1.5b+shepherd-7b math-7b+skywork-1.5b; fi

for pair in "$@"; do
  echo "== $pair"
  export FLASHEDGE_PAIR=$pair
  "$VENV/bin/flashedge" profile --if-needed
  "$VENV/bin/flashedge" bench flashtts --problems "$PROBLEMS" --pair "$pair" --limit "${LIMIT:-20}" \
    --n "${N:-8,64,512}" --kv "${KV:-plan}" --rounds "${ROUNDS:-2}" --output "runs/card-$pair"
  "$VENV/bin/python" -m scripts.bench.flashtts.ladder_page "runs/card-$pair" --name "card-$pair" \
    --problems "$PROBLEMS" --on "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)"
done
