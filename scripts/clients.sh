#!/usr/bin/env bash
# Installs the programs of others that the tests run (agent frameworks, schemathesis) into an
# environment of their own, .venv-clients. When everything is up to date, it takes no time.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_CLIENTS_VENV:-$ROOT/.venv-clients}
LIST=$ROOT/requirements/clients.txt
STAMP=$VENV/.installed

if [ "${1:-}" = --help ]; then sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" && exit 0; fi
exec 9>"$VENV.lock"
flock 9 # the tests may ask for it while scripts/test.sh makes it
if cmp -s "$LIST" "$STAMP"; then exit 0; fi
PY=$ROOT/.venv/bin/python
"$PY" -m venv --clear --without-pip "$VENV"
cp "$LIST" "$STAMP.new" # what is installed, even where the list changes meanwhile
"$PY" -m pip --python "$VENV" --disable-pip-version-check install -q --no-deps --no-compile -r "$STAMP.new"
mv "$STAMP.new" "$STAMP"
