#!/usr/bin/env bash
# Installs FlashEdge if needed, then solves a problem:
#   bash scripts/quickstart.sh [--cpu|--cuda] [--torch-index URL] ["problem" [options of solve]]
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
PROBLEM="Dan has 24 nuts. Day 1: wins 20. Day 2: gets 52. Day 3: drops 41. Day 4: drops 30. Ben has 43 stones. Day 5: wins 10. Day 6: loses 25. Day 7: buys 44. Day 8: uses 28. How many nuts has Dan after day 8?"

setup=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 0 ;;
    --cpu | --cuda) setup+=("$1") ;;
    --torch-index | --python) setup+=("$1" "${2:?needs a value}") && shift ;;
    *) break ;;
  esac
  shift
done
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  PROBLEM=$1
  shift
fi

bash "$ROOT/scripts/setup.sh" --quiet ${setup[@]+"${setup[@]}"}
exec "$VENV/bin/flashedge" solve "$@" -- "$PROBLEM"
