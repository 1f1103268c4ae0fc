#!/usr/bin/env bash
# Sets FlashEdge up if needed, then runs every check and test:
#   bash scripts/test.sh [--long] [pytest options]
# --long: also the tests that are marked long; each says how long it takes, together some 20 minutes.
# FLASHEDGE_FAST=1: no test that starts real engines, and no command of a page.
# FLASHEDGE_LAB=0: no test of the measuring tools (tests/lab).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
cd "$ROOT"
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same files

if [ "${1:-}" = --help ]; then sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" && exit 0; fi
marks=""
if [ "${1:-}" = --long ]; then shift; else marks=" and not long"; fi
if [ "${FLASHEDGE_FAST:-0}" = 1 ]; then marks="$marks and not engine and not gpu"; fi
if [ "${FLASHEDGE_LAB:-1}" = 0 ]; then marks="$marks and not lab"; fi
bash scripts/setup.sh --dev --quiet --no-profile

# The environment of tests/clients is made beside the checks; the test that needs it waits for it.
if [[ $marks != *"not engine"* ]]; then bash scripts/clients.sh & fi

run() {
  printf '== %s\n' "$*"
  "$VENV/bin/python" -m "$@"
}
run ruff format --check .
run ruff check .
printf '== lint-imports\n' && "$VENV/bin/lint-imports"

# mypy uses one core, and the tests leave some idle while engines start: it runs beside them.
types=$(mktemp)
trap 'rm -f "$types"' EXIT
"$VENV/bin/python" -m mypy >"$types" 2>&1 &
failed=0
# Three processes even on two cores, since tests wait for engines and daemons. Tests that share
# engines or a daemon are a group, which runs in one of them.
run pytest -q -n 3 --dist loadgroup -m "${marks# and }" "$@" || failed=1
if [[ $# = 0 && $marks != *"not engine"* ]]; then
  run scripts.page_commands --smoke || failed=1 # scripts that pages name
fi
printf '== mypy\n'
wait $! || failed=1
cat "$types"
exit $failed
