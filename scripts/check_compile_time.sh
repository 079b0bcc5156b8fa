#!/usr/bin/env bash
# A changed file compiles in seconds: scripts/check_compile_time.sh [preset]     preset (release): is built
# Compiles anew, without ccache, the units that took longest when the build last compiled them, and holds the processor time of each
# against that of a small file of standard headers, compiled just before it: processors differ threefold, and what else runs beside
# costs both. A unit of four files with LibTorch takes 3 to 8 times that with the precompiled header, one of six of the core 1 to 3.
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

cat >"$scratch/small.cc" <<'CC'
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>
std::map<std::string, std::vector<std::function<bool(const std::string&)>>> rules_of(const std::string& text) {
  std::map<std::string, std::vector<std::function<bool(const std::string&)>>> rules;
  const std::regex word("\\w+");
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at)
    rules[at->str()].push_back([rule = std::regex(at->str())](const std::string& s) { return std::regex_match(s, rule); });
  return rules;
}
CC
small_command=("$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" -std=c++20 -O3
  -c "$scratch/small.cc" -o "$scratch/small.o")

seconds_of() { # a command: its processor time
  { time "$@" >"$scratch/output" 2>&1; } 2>"$scratch/time" || { cat "$scratch/output" >&2; exit 1; }
  awk 'END { print $1 + $2 }' "$scratch/time"
}

status=0
check() { # regex of objects, how many times the small file's seconds they may take
  local object objects command small seconds
  mapfile -t objects < <(slowest "$1")
  ((${#objects[@]})) || { echo "compile time: the build has no unit $1"; exit 1; }
  for object in "${objects[@]:0:2}"; do
    command=$(ninja -C "$build" -t commands "$object" | tail -n 1)
    command=${command//"$object"/"$scratch/object"}
    small=$(seconds_of "${small_command[@]}")
    seconds=$(seconds_of bash -c "cd '$build' && $command")
    object=${object#*.dir/}
    awk -v name="${object%.o}" -v seconds="$seconds" -v small="$small" -v most="$2" 'BEGIN {
      printf "compile time: %s takes %.0f s of processor time, %.1f times the %.1f s of a small file\n", name, seconds, seconds / small, small
      if (seconds <= most * small) exit
      printf "  expected at most %d times; split it, or include less\n", most
      exit 1 }' || status=1
  done
}
check '^CMakeFiles/(sfsdp_torch|torch_test_objects)\.dir/.*\.(cc|cxx)\.o$' 12 # four files, or one
check '^CMakeFiles/(sfsdp_core|core_tests|sfsdp_testing)\.dir/.*\.(cc|cxx)\.o$' 7 # six
exit $status
