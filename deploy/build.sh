#!/usr/bin/env bash
# Configures and builds one preset of CMakePresets.json. The default is dev. Run deploy/install.sh first.
#
# usage: deploy/build.sh [--without-tests] [PRESET [NINJA ARGUMENTS ...]]
#   --without-tests   configures a new build folder without the tests, which need more packages
#                     (deploy/install.sh --tests). A later call without it adds them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests=ON
if [ "${1:-}" = --without-tests ]; then
  tests=OFF
  shift
fi
preset=${1:-dev}
[ $# -gt 0 ] && shift
build=build/$preset

configure() {
  echo "== Configuring $build ..."
  cmake --preset "$preset" --log-level=NOTICE -Wno-dev "$@"
}

if ! [ -f "$build/build.ninja" ]; then
  if [ $tests = ON ]; then configure; else configure -DEGERIA_BUILD_TESTS=OFF; fi
elif [ $tests = ON ] && grep -q '^EGERIA_BUILD_TESTS:BOOL=OFF' "$build/CMakeCache.txt"; then
  configure
fi

# A terminal gets ninja's own line, which is rewritten as the build goes on. Elsewhere that would be a line a file:
# one every half a minute is enough, and everything that is not progress.
every_half_minute() {
  local line next=0
  while IFS= read -r line; do
    if [[ $line != \[+([0-9])/+([0-9])\]* ]] || [ $SECONDS -ge $next ]; then
      printf '%s\n' "$line"
      [[ $line != \[* ]] || next=$((SECONDS + 30))
    fi
  done
}

echo "== Building in $build; the first time takes some minutes ..."
if [ -t 1 ]; then
  cmake --build "$build" -- "$@"
else
  cmake --build "$build" -- "$@" | every_half_minute
fi
