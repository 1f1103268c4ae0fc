#!/usr/bin/env bash
# Sets FlashEdge up if needed, then solves a problem:
#   bash scripts/quickstart.sh [--cpu|--cuda] [--torch-index URL] ["problem" [options of solve]]
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
PROBLEM="Sam has 12 apples. He buys 7 more apples. Then he gives 5 apples to a friend. How many apples does Sam have now?"

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
