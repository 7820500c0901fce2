#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the tests: tests/run.sh [CTEST ARGUMENTS ...].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash deploy/install.sh
bash deploy/build.sh dev
exec ctest --test-dir build/dev --output-on-failure --timeout 900 "$@"
