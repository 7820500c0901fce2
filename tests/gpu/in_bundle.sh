#!/usr/bin/env bash
# Runs a command in a folder that tests/gpu/bundle.sh has made:
#
#   bash tests/gpu/in_bundle.sh python3 -m pytest -q tests/gpu
#
# A library that came along is used where the machine has none of its name. `python3` is the one with torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
present=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
mkdir -p missing
for library in libraries/*; do
  grep -qF "${library##*/} " <<<"$present" || ln -sf "../$library" missing
done
torch=$(python3 -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))')
export EGERIA_BIN=$PWD/build/dev/bin OMP_NUM_THREADS=1
export PYTHONPATH=$PWD/build/dev/python:$PWD/tests:$PWD${PYTHONPATH:+:$PYTHONPATH}
export LD_LIBRARY_PATH=$PWD/missing:$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$@"
