# Sourced by the other scripts of this folder: prints their heads, or installs and runs the Python
# script of the same name.
set -euo pipefail

SCRIPT=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)/$(basename "${BASH_SOURCE[1]}")
ROOT=$(cd "$(dirname "$SCRIPT")/../.." && pwd)
cd "$ROOT"
if [ "${1:-}" = --help ]; then sed -n '2,6s/^# \{0,1\}//p' "$SCRIPT" && exit 0; fi
bash scripts/setup.sh --dev --quiet --no-profile
exec "${FLASHEDGE_VENV:-$ROOT/.venv}/bin/python" -m "scripts.card.$(basename "$SCRIPT" .sh)" "$@"
