#!/usr/bin/env bash
# Sets everything up and runs the main job: two ranks train a small network on the digits data set under egeria-run:
# plainly, with freezing, and with the paper's freezing rule. Prints a table; leaves build/out/quickstart/summary.json.
#
# usage: deploy/quickstart.sh [--data DIR]
#   --data DIR   then also ResNet-20 on CIFAR-10; DIR holds its standard binary files (cifar-10-batches-bin).
#                Takes some minutes on two cores. Leaves build/out/cifar10/{summary.json,plasticity.png} too.
#
# Each step does nothing where its result is there already; it may be interrupted and run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=
while [ $# -gt 0 ]; do
  case $1 in
    --data) data=${2:?"--data needs a folder"}; shift 2 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
if [ -n "$data" ] && ! [ -f "$data/data_batch_1.bin" ] && ! [ -f "$data/cifar-10-batches-bin/data_batch_1.bin" ]; then
  echo "quickstart.sh: $data holds no data_batch_1.bin: give the folder with CIFAR-10's binary files" >&2
  exit 2
fi

bash deploy/install.sh
bash deploy/build.sh --without-tests dev egeria-cache egeria-controller egeria-run egeria-train egeria
PATH=$PWD/build/dev/bin:$PWD/.venv/bin:$PATH
export OMP_NUM_THREADS=1  # one compute thread per rank
export PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$PWD/build/pycache  # torch is compiled once, not in each process
export EGERIA_CACHE=$PWD/build/out/cache

# train OUTPUT_FOLDER NAME ARGUMENTS...: one run on two ranks, its summary in OUTPUT_FOLDER/NAME.json.
train() {
  local out=$1 name=$2
  shift 2
  echo "== egeria-run --nproc-per-node 2 --no-python egeria-train $*"
  egeria-run --nproc-per-node 2 --no-python egeria-train "$@" --summary "$out/$name.json"
}

# with_controller OUTPUT_FOLDER COMMAND...: runs the command with a controller, whose journal lies in the folder.
with_controller() {
  local out=$1 status=0
  shift
  rm -rf "$out/state"
  export EGERIA_CONTROLLER=unix:$out/controller.sock
  egeria-controller --listen "$EGERIA_CONTROLLER" --state-dir "$out/state" --metrics-listen none \
    > "$out/controller.log" 2>&1 &
  local controller=$!
  trap 'kill $controller 2>/dev/null || true' EXIT
  "$@" || status=$?
  kill $controller
  wait $controller || true
  trap - EXIT
  unset EGERIA_CONTROLLER
  return $status
}

quickstart() {
  local out=$PWD/build/out/quickstart
  mkdir -p "$out"
  [ -f "$out/digits.bin" ] || python deploy/digits/export_digits.py "$out/digits.bin"
  local job=(--task digits --data "$out/digits.bin" --epochs 60 --schedule step --lr-milestones 0.6 --seed 0)
  EGERIA_CONTROLLER=none train "$out" plain "${job[@]}"
  train "$out" auto "${job[@]}"
  train "$out" plasticity "${job[@]}" --policy plasticity --interval 4 --window 4
  echo
  python deploy/report/summarize.py "$out/summary.json" "$out/plain.json" "$out/auto.json" "$out/plasticity.json"
}

cifar10() {
  local out=$PWD/build/out/cifar10
  mkdir -p "$out"
  local job=(--task resnet20 --data "$data" --train-samples 10000 --epochs 16 --schedule step
             --lr-milestones 0.6 --seed 0)
  EGERIA_CONTROLLER=none train "$out" plain "${job[@]}"
  train "$out" auto "${job[@]}"
  train_and_export() {
    train "$out" plasticity "${job[@]}" --policy plasticity --interval 5 --window 5
    egeria export resnet20 > "$out/readings.jsonl"
    egeria export resnet20 --decisions > "$out/decisions.jsonl"
  }
  with_controller "$out" train_and_export
  python deploy/report/plot_plasticity.py "$out/readings.jsonl" "$out/decisions.jsonl" "$out/plasticity.png" \
    --title "ResNet-20 on CIFAR-10, 2 ranks"
  echo
  python deploy/report/summarize.py "$out/summary.json" "$out/plain.json" "$out/auto.json" "$out/plasticity.json"
}

quickstart
if [ -n "$data" ]; then cifar10; fi
