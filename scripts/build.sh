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
cached=$(sed -n 's/^SFSDP_TORCH_DIR:PATH=//p' "build/$preset/CMakeCache.txt" 2>/dev/null || true)
if [[ ! -e build/$preset/build.ninja || $cached != "$torch_dir" ]]; then
  cmake --preset "$preset" -DSFSDP_TORCH_DIR="$torch_dir" >"build/$preset/configure.log" 2>&1 ||
    { cat "build/$preset/configure.log"; exit 1; }
fi
# ninja configures again by itself when a CMake file or the set of sources changed
ninja -C "build/$preset" -j "${JOBS:-$(nproc)}" --quiet "$@" 9>&- | { grep -v "no work to do" || true; }
