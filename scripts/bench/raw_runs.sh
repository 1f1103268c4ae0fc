#!/usr/bin/env bash
# Brings the raw runs behind the published tables back from the repository's history:
#   bash scripts/bench/raw_runs.sh [folder]        (default: runs/published)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
COMMIT=0c93182 # the last commit that had them under docs/
OUT=${1:-$ROOT/runs/published}

if [ "${1:-}" = --help ]; then sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 0; fi
cd "$ROOT"
git cat-file -e "$COMMIT^{commit}" 2>/dev/null || {
  echo "error: this clone has no commit $COMMIT" >&2
  echo "  hint: a shallow clone has no history; run git fetch --unshallow" >&2
  exit 1
}
mkdir -p "$OUT"
git archive "$COMMIT" docs/flashtts docs/certainty | tar -x -C "$OUT" --strip-components=1
echo "raw runs and tables are in $OUT"
