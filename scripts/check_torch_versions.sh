#!/usr/bin/env bash
# Builds against several releases of LibTorch, runs torch_tests on each, and prints a table.
#   scripts/check_torch_versions.sh [version]...     TORCH_WHEELS: where they are unpacked (./.cache/torch)
# Downloads 200 to 530 MB a version, once, and keeps 0.5 GB of it; the one that setup.sh has found is used where it is.
# A version that the index does not have is named as not tested; the exit status tells of those that were.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
versions=("$@")
((${#versions[@]})) || versions=(2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)
wheels=$(realpath -m "${TORCH_WHEELS:-.cache/torch}")
threads=${OMP_NUM_THREADS:-1} # of a rank in a test
unset OMP_NUM_THREADS          # else nproc counts by it, and one file is compiled at a time
mkdir -p "$wheels" build
./setup.sh --no-torch || exit 1
python=python3
[[ -x .venv/bin/python3 ]] && python=.venv/bin/python3

torch_of() { # folder of version $1
  local found
  found=$(cat build/torch_dir 2>/dev/null)
  if grep -qE "^__version__ = '$1(\+.*)?'" "$found/version.py" 2>/dev/null; then echo "$found"; else echo "$wheels/$1/torch"; fi
}

unpack() { # wheel of version $1 to $wheels/$1: only what building and running on the CPU needs
  [[ -e $(torch_of "$1")/lib/libtorch_cpu.so ]] && return
  "$python" -m pip download --retries 1 --no-deps --dest "$wheels" \
    --extra-index-url https://download.pytorch.org/whl/cpu "torch==$1" || return
  "$python" - "$wheels" "$1" <<'PY' || return
import glob, os, shutil, sys, zipfile
wheels, version = sys.argv[1:]
wheel_file = sorted(glob.glob(f"{wheels}/torch-{version}[+-]*.whl"))[0]
unneeded = ("cuda", "python", "nvshmem", "nvrtc", "libshm")
def is_needed(name):
    folder, base = name.split("/")[:2], os.path.basename(name)
    return folder == ["torch", "include"] or folder[0] == "torch.libs" or (
        folder == ["torch", "lib"] and (base.startswith("libc10.") or not any(word in name for word in unneeded)))
with zipfile.ZipFile(wheel_file) as wheel:
    shutil.rmtree(f"{wheels}/{version}.part", ignore_errors=True)
    wheel.extractall(f"{wheels}/{version}.part", filter(is_needed, wheel.namelist()))
os.rename(f"{wheels}/{version}.part", f"{wheels}/{version}")
os.remove(wheel_file)
PY
}

status=0 rows=() untested=()
for version in "${versions[@]}"; do
  log=build/torch-$version.log
  : >"$log"
  seconds=$SECONDS
  if ! unpack "$version" >"$log" 2>&1; then
    result="could not download"
    if grep -q 'No matching distribution' "$log"; then result="not on the index" && untested+=("$version"); fi
  elif ! cmake -S . -B "build/torch-$version" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSFSDP_TORCH_DIR="$(torch_of "$version")" >>"$log" 2>&1; then
    result="configure failed"
  elif ! ninja -C "build/torch-$version" -j "${JOBS:-$(nproc)}" torch_tests sfsdp >>"$log" 2>&1; then
    result="build failed"
  elif ldd "build/torch-$version/torch_tests" | grep 'not found' >>"$log"; then # a CUDA wheel on a machine without CUDA
    result="cannot run: no $(tail -1 "$log" | awk '{ print $1 }')"
  elif OMP_NUM_THREADS=$threads timeout 3600 "build/torch-$version/torch_tests" --no-colors=true >>"$log" 2>&1; then
    result="passed"
    rm -rf "build/torch-$version" # 0.4 GB, which ccache has too
  else
    result="tests failed"
  fi
  [[ $result == passed || $result == "not on the index" ]] || status=1
  rows+=("$(printf '%-10s %-20s %5d s  %s' "$version" "$result" $((SECONDS - seconds)) \
    "$(grep '^\[doctest\] test cases:' "$log" | tail -1 || true)")  log: $log")
  echo "${rows[-1]}"
done
printf '\n%-10s %-20s\n' LibTorch result
printf '%s\n' "${rows[@]}"
((${#untested[@]})) && echo "not tested, as the index does not have it: ${untested[*]}"
exit $status
