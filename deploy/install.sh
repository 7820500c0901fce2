#!/usr/bin/env bash
# Installs what the build and the programs need: Debian packages (deploy/packages.txt) and a Python environment in .venv
# (deploy/requirements.txt), with npm in it where the machine has none (deploy/requirements-npm.txt). With --tests it
# also installs what only the tests and the tasks of `egeria bench` need (deploy/packages-tests.txt,
# deploy/requirements-tests.txt, deploy/requirements-bench.txt and, in .venv/compat, deploy/requirements-compat.txt).
# With --packages it installs the Debian packages alone, which is all that `pip install .` needs.
# Does nothing where all of it is there; may be interrupted and run again. Without root it names exactly the packages
# that are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lists=("")
case ${1:-} in
  "" | --packages) ;;
  --tests) lists+=("-tests") ;;
  *) echo "usage: deploy/install.sh [--tests | --packages]" >&2; exit 2 ;;
esac

# slowly MESSAGE COMMAND...: says what is about to happen, runs the command, and says every half a minute that it still
# runs. The command's own words are shown only where it fails.
slowly() {
  local message=$1 log status=0 start=$SECONDS
  shift
  echo "== $message ..."
  log=$(mktemp)
  while sleep 30 >/dev/null 2>&1; do
    echo "   $((SECONDS - start)) seconds so far; now: $(tail -n 1 "$log" | cut -c1-90)"
  done &
  local ticker=$!
  "$@" >"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null
  wait "$ticker" 2>/dev/null || true
  [ "$status" -eq 0 ] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

missing=()
for list in "${lists[@]}"; do
  for package in $(grep -v '^#' "deploy/packages$list.txt"); do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
  done
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "These Debian packages are missing; install them as root and run this again:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  slowly "Reading the lists of Debian's packages" apt-get update
  # Prometheus, Slurm and munge are wanted for their programs: they shall not start servers on this machine.
  RUNLEVEL=1 slowly "Installing ${#missing[@]} Debian packages, about one minute: ${missing[*]}" \
    apt-get install -y --no-install-recommends "${missing[@]}"
fi
[ "${1:-}" != --packages ] || exit 0

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  slowly "Making the Python environment .venv" python3 -m venv .venv
fi

# One stamp a list: the environment of the programs stays as it is when the tests' packages join it.
# install LIST [PIP ARGUMENTS ...]
install() {
  local requirements=deploy/requirements$1.txt stamp=.venv/egeria-requirements$1 wanted names
  shift
  wanted=$(sha256sum "$requirements" | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] || return 0
  names=$(grep -v '^#' "$requirements" | tr '\n' ' ')
  # Python compiles the modules that it imports, which are few of those that are installed.
  slowly "Installing Python packages into .venv, one to three minutes: $names" \
    .venv/bin/python -m pip install --no-compile --disable-pip-version-check --progress-bar off "$@" -r "$requirements"
  echo "$wanted" > "$stamp"
}
for list in "${lists[@]}"; do install "$list"; done
command -v npm >/dev/null || install -npm
if [ ${#lists[@]} -gt 1 ]; then
  install -bench --no-deps
  install -compat --no-deps --upgrade --target .venv/compat
fi
