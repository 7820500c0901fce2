#!/usr/bin/env bash
# Installs what the build needs: Debian packages (deploy/packages.txt) and a Python environment in .venv
# (deploy/requirements.txt). Does nothing where all of it is there; may be interrupted and run again.
# Without root it names exactly the packages that are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=$(grep -v '^#' deploy/packages.txt)
missing=()
for package in $packages; do
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "These Debian packages are missing; install them as root and run this again:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "== installing ${#missing[@]} Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # The Prometheus package is wanted for its programs: it shall not start a server on this machine.
  RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  echo "== making the Python environment .venv"
  rm -rf .venv
  python3 -m venv .venv
fi
wanted=$(sha256sum deploy/requirements.txt | cut -d' ' -f1)
if [ "$(cat .venv/egeria-requirements 2>/dev/null || true)" != "$wanted" ]; then
  echo "== installing Python packages: $(grep -v '^#' deploy/requirements.txt | tr '\n' ' ')"
  .venv/bin/python -m pip install -q --disable-pip-version-check -r deploy/requirements.txt
  echo "$wanted" > .venv/egeria-requirements
fi
