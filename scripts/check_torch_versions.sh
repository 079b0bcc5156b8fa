#!/usr/bin/env bash
# Builds against several releases of LibTorch, runs torch_tests on each, and prints a table.
#   scripts/check_torch_versions.sh [version]...     TORCH_WHEELS: where wheels are kept (./.cache/torch)
# Downloads some 200 MB and unpacks 1 GB a version, once.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
versions=("$@")
((${#versions[@]})) || versions=(2.11.0 2.13.0 2.14.1 2.15.0)
wheels=$(realpath -m "${TORCH_WHEELS:-.cache/torch}")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$wheels" build
./setup.sh --no-torch || exit 1
python=python3
[[ -x .venv/bin/python3 ]] && python=.venv/bin/python3

unpack() { # wheel of version $1 to $wheels/$1; only what a C++ build needs
  [[ -e $wheels/$1/torch/lib/libtorch_cpu.so ]] && return
  "$python" -m pip download --quiet --no-deps --dest "$wheels" \
    --extra-index-url https://download.pytorch.org/whl/cpu "torch==$1" || return
  "$python" - "$wheels" "$1" <<'PY'
import glob, sys, zipfile
wheels, version = sys.argv[1:]
with zipfile.ZipFile(sorted(glob.glob(f"{wheels}/torch-{version}[+-]*.whl"))[0]) as wheel:
    names = [n for n in wheel.namelist() if n.startswith(("torch/include/", "torch/lib/", "torch.libs/"))]
    wheel.extractall(f"{wheels}/{version}", names)
PY
}

status=0
rows=()
for version in "${versions[@]}"; do
  log=build/torch-$version.log
  result=
  if ! unpack "$version" >"$log" 2>&1; then
    result="no wheel"
  elif ! cmake -S . -B "build/torch-$version" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSFSDP_TORCH_DIR="$wheels/$version/torch" >>"$log" 2>&1; then
    result="configure failed"
  elif ! ninja -C "build/torch-$version" -j "${JOBS:-$(nproc)}" torch_tests >>"$log" 2>&1; then
    result="build failed"
  elif timeout 900 "build/torch-$version/torch_tests" --no-colors=true >>"$log" 2>&1; then
    result="passed"
  else
    result="tests failed"
  fi
  [[ $result == passed ]] || status=1
  rows+=("$(printf '%-10s %-18s %s' "$version" "$result" "$(grep '^\[doctest\] test cases:' "$log" | tail -1 || true)")  log: $log")
  echo "${rows[-1]}"
done
printf '\n%-10s %-18s\n' LibTorch result
printf '%s\n' "${rows[@]}"
exit $status
