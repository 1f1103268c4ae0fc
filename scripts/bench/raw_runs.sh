#!/usr/bin/env bash
# Brings the runs of two studies back from the repository's history, those of FlashTTS's ladder and of the early exits
# of self-consistency and MCTS, and figures of others:   bash scripts/bench/raw_runs.sh [folder]   (runs/published)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Each line: the last commit that had them, and where.
KEPT="0c93182 docs/flashtts docs/certainty
9c3c292 docs/certainty
df278d3 docs/certainty"
OUT=${1:-$ROOT/runs/published}

if [ "${1:-}" = --help ]; then sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 0; fi
cd "$ROOT"
mkdir -p "$OUT"
while read -r commit places; do
  git cat-file -e "$commit^{commit}" 2>/dev/null || {
    echo "error: this clone has no commit $commit" >&2
    echo "  hint: a shallow clone has no history; run git fetch --unshallow" >&2
    exit 1
  }
  # shellcheck disable=SC2086 # several folders
  git archive "$commit" $places | tar -x -C "$OUT" --strip-components=1
done <<<"$KEPT"
gunzip -qf "$OUT"/certainty/whole_runs/*.gz
echo "raw runs and tables are in $OUT"
