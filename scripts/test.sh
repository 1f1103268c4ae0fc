#!/usr/bin/env bash
# Installs FlashEdge if needed, then runs all checks and tests:  bash scripts/test.sh [pytest options]
# FLASHEDGE_FAST=1 leaves out the tests that start real engines.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
cd "$ROOT"

if [ "${1:-}" = --help ]; then sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 0; fi
bash scripts/setup.sh --dev --quiet --no-profile

run() {
  printf '== %s\n' "$*"
  "$VENV/bin/python" -m "$@"
}
run ruff format --check .
run ruff check .
printf '== lint-imports\n' && "$VENV/bin/lint-imports"
run mypy
if [ "${FLASHEDGE_FAST:-0}" = 1 ]; then set -- -m "not engine and not gpu" "$@"; fi
run pytest -q "$@"
