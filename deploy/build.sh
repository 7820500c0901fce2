#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json: deploy/build.sh [PRESET [NINJA ARGUMENTS ...]].
# The default is dev. Run deploy/install.sh first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-dev}
[ $# -gt 0 ] && shift
if ! [ -f "build/$preset/build.ninja" ]; then
  cmake --preset "$preset" --log-level=NOTICE -Wno-dev
fi
cmake --build "build/$preset" -- "$@"
