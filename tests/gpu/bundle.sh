#!/usr/bin/env bash
# Makes a folder from which tests/gpu and tests/benchmarks run on a machine that has a GPU, Python, torch and pytest,
# but neither a network nor a compiler nor Debian's libraries. tests/gpu/in_bundle.sh runs a command in it.
#
# usage: tests/gpu/bundle.sh PYTHON FOLDER [BUILD]
#   PYTHON  a Python of this machine, of the other one's minor version, with the other one's version of torch; CUDA's
#           libraries need not be here, since nothing of torch is run
#   FOLDER  what is made; it takes some 60 MiB, and must not be there yet
#   BUILD   the folder to build in (default build/bundle), which is configured if it is not
set -euo pipefail
if [ $# -lt 2 ] || [ -e "$2" ]; then
  echo "usage: tests/gpu/bundle.sh PYTHON FOLDER [BUILD], where FOLDER is not there yet" >&2
  exit 2
fi
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mkdir -p "$2"
folder=$(cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${3:-build/bundle}

[ -f "$build/build.ninja" ] || cmake --preset release -B "$build" -DPython_EXECUTABLE="$python"
cmake --build "$build" --target _native egeria egeria-cache egeria-controller egeria-reference egeria-run

git ls-files -z bench deploy pyproject.toml tests worker/python | xargs -0 cp --parents -t "$folder"
git describe --always --exclude="*" --abbrev=12 --dirty=+ >"$folder/REVISION"
mkdir -p "$folder/build/dev/bin" "$folder/libraries"
cp -rL "$build/python" "$folder/build/dev"
cp "$build"/bin/egeria{,-cache,-controller,-reference,-run} "$folder/build/dev/bin"
built=("$folder"/build/dev/bin/* "$folder"/build/dev/python/egeria/_native*.so)

# The C and C++ libraries are the other machine's, as its Python needs them; torch's come with its torch.
ldd "${built[@]}" | awk '$3 ~ "^/(usr/)?lib/" {print $3}' | sort -u |
  grep -vE '/lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s)[.]so[^/]*$' | xargs cp -Lt "$folder/libraries"
strip --strip-unneeded "${built[@]}" "$folder"/libraries/*
du -sh "$folder"
