#!/usr/bin/env bash
# Installs what is missing, builds everything and runs tests: tests/run.sh [unit|e2e|slow] [CTEST ARGUMENTS ...].
#   (nothing)  all of them
#   unit       what takes seconds: two minutes in all, once everything is built
#   e2e        whole programs: jobs under egeria-run, with faults, metrics and the main job
#   slow       what takes longer than unit tests do and is not e2e: fuzzing, trainings, `pip install .`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
select=()
case ${1:-} in
  unit|e2e|slow) select=(--label-regex "^$1\$"); shift ;;
esac
bash deploy/install.sh --tests
bash deploy/build.sh dev
# A Python that may not keep what it has compiled does so with all of torch in each of some hundred processes.
export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$PWD/build/pycache
# Three at a time, since many of them wait; those that measure time run alone (RUN_SERIAL).
exec ctest --test-dir build/dev --output-on-failure --timeout 900 --parallel 3 "${select[@]}" "$@"
