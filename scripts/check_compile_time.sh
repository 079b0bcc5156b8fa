#!/usr/bin/env bash
# A changed file compiles in seconds: scripts/check_compile_time.sh [preset]     preset (release): is built
# Compiles anew, without ccache, the units that took longest when the build last compiled them, and holds the seconds of
# processor time, which other work on the machine changes less than twofold, against a bound. A unit of four files with LibTorch takes
# 10-30 s with the precompiled header, one of six of the core 5-15 s.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/${1:-release}
[[ -e $build/.ninja_log ]] || { echo "compile time: $build knows no files; run scripts/build.sh first"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CCACHE_DISABLE=1
TIMEFORMAT='%U %S'

# The log has lines "start end - output -" in milliseconds; the last one of an object counts. It also has what the build once made.
ninja -C "$build" -t targets all | sed -n 's/: .*//p' >"$scratch/targets"
slowest() { # regex of objects
  awk -F'\t' -v wanted="$1" '
    NR == FNR { made[$1] = 1; next }
    $4 ~ wanted && $4 in made { took[$4] = $2 - $1 }
    END { for (o in took) print took[o], o }' "$scratch/targets" "$build/.ninja_log" | sort -rn | cut -d " " -f 2
}

status=0
check() { # regex of objects, bound in seconds
  local object objects command seconds
  mapfile -t objects < <(slowest "$1")
  for object in "${objects[@]:0:2}"; do
    command=$(ninja -C "$build" -t commands "$object" | tail -n 1)
    command=${command//"$object"/"$scratch/object"}
    { time (cd "$build" && eval "$command"); } 2>"$scratch/time" || { cat "$scratch/time"; exit 1; }
    seconds=$(awk 'END { print int($1 + $2 + 0.5) }' "$scratch/time")
    object=${object#*.dir/}
    echo "compile time: ${object%.o} takes $seconds s of processor time"
    ((seconds <= $2)) || { echo "  expected at most $2 s; split it, or include less"; status=1; }
  done
}
check '^CMakeFiles/(sfsdp_torch|torch_test_objects)\.dir/.*\.(cc|cxx)\.o$' 60 # four files, or one
check '^CMakeFiles/(sfsdp_core|core_tests|sfsdp_testing)\.dir/.*\.(cc|cxx)\.o$' 40 # six
exit $status
