#!/usr/bin/env bash
# Configures a CMake preset, if needed, and builds: scripts/build.sh <release|core|debug|asan|tsan> [target]...
# Expects ./setup.sh to have run. Where several callers share the build folder, one waits for the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
mkdir -p "build/$preset"
exec 9>"build/$preset.lock"
flock 9

torch_dir=
[[ $preset == core || $preset == tsan ]] || torch_dir=$(<build/torch_dir)
cache=build/$preset/CMakeCache.txt
cached=$(sed -n 's/^SFSDP_TORCH_DIR:PATH=//p' "$cache" 2>/dev/null || true)
no_tests=$(grep '^SFSDP_INCLUDE_doctest.*NOTFOUND' "$cache" 2>/dev/null || true) # doctest may have come since
no_mpi= # so may MPI
command -v mpicxx >/dev/null && no_mpi=$(grep '^MPI_CXX_COMPILER:.*NOTFOUND' "$cache" 2>/dev/null || true)
if [[ ! -e build/$preset/build.ninja || $cached != "$torch_dir" || -n $no_tests || -n $no_mpi ]]; then
  cmake --preset "$preset" -DSFSDP_TORCH_DIR="$torch_dir" >"build/$preset/configure.log" 2>&1 ||
    { cat "build/$preset/configure.log"; exit 1; }
fi

# A line for each tenth of the work, and all that compilers print.
each_tenth() {
  local line last=0 tenth
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      ((tenth > last)) && last=$tenth && echo "$line"
    elif [[ $line != "ninja: no work to do."* && $line != "ninja: Entering directory"* ]]; then
      printf '%s\n' "$line"
    fi
  done
}

# ninja configures again by itself when a CMake file or the set of sources changed
build=(ninja -C "build/$preset" -j "${JOBS:-$(nproc)}" "$@")
export NINJA_STATUS="[%f/%t] "
if [[ -t 1 ]]; then # ninja rewrites one line there
  "${build[@]}" 9>&-
else
  "${build[@]}" 9>&- | each_tenth
fi
