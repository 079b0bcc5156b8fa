#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy, warnings are errors) over what changed in the torch-free core:
#   scripts/check_tidy.sh [preset] [--all]     preset (release): is built, so its build knows what each file includes
# Clean states are remembered for all clones of this user, in ~/.cache/sfsdp/tidy or under $XDG_CACHE_HOME: an empty file
# <unit>/<hash> of the compiler's arguments, the file, all headers it includes, the rules and clang-tidy's version. Files
# unused for 30 days go, and all but the last 20 of a unit. A unit is linted if its state is not there, but another is: it
# changed. One that was never linted is, if git says that it or its header changed since main; on main itself, in the last 6 hours
# before its last commit. --all lints every unit that is not known to be clean: 7 s of processor time each. Left out for their time are tests
# and what includes LibTorch. Pinned to clang-tidy 14: versions disagree. Exit status 77: could not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release all=
for argument in "$@"; do
  if [[ $argument == --all ]]; then all=yes; else preset=$argument; fi
done
build=build/$preset
source scripts/find_llvm_tool.sh
tidy=$(find_llvm_tool clang-tidy)
if [[ -z $tidy ]]; then
  echo "tidy not checked: no clang-tidy 14; install clang-tidy-14"
  exit 77
fi
[[ -e $build/compile_commands.json ]] || { echo "tidy: $build knows no files; run scripts/build.sh first"; exit 1; }
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/sfsdp/tidy
mkdir -p "$cache" 2>/dev/null || true
[[ -w $cache ]] || echo "tidy: $cache cannot be written: what is found clean now is not remembered"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Without the precompiled header, which is g++'s, and how g++ keeps memory: each file is linted with its own includes alone, also
# where it is compiled as one with others, whose unit then lists them: an entry of the unit becomes one of each.
sed -E 's/ -Winvalid-pch -include [^ "]*cmake_pch\.hxx//; s/ --param [a-z=0-9-]*//g' "$build/compile_commands.json" |
  awk '
    /^{/ { entry = unit = ""; next }
    /^ *"file":/ { unit = $2; gsub(/^"|",?$/, "", unit) }
    /^ *"(directory|command|file)":/ { sub(/,?$/, ","); entry = entry $0 "\n"; next }
    /^}/ {
      count = 1
      files[1] = unit
      if (unit ~ /\/Unity\//) {
        count = 0
        while ((getline line <unit) > 0) if (split(line, parts, "\"") == 3 && line ~ /^#include/) files[++count] = parts[2]
        close(unit)
      }
      for (i = 1; i <= count; ++i) {
        one = entry
        while (at = index(one, unit)) one = substr(one, 1, at - 1) "\001" substr(one, at + length(unit))
        gsub("\001", files[i], one)
        printf "%s\n{\n%s\n}", some++ ? "," : "[", substr(one, 1, length(one) - 2)
      }
    }
    END { print "\n]" }' >"$scratch/compile_commands.json"

# The tree's own place is no part of a state: paths in it are written from its root.
root=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
# One line a unit: itself, then all it includes; of files that are compiled as one, each with the headers of all.
ninja -C "$build" -t deps | awk -v root="$root/" '
  function end_unit(   i) {
    for (i = 1; i <= units; ++i) print unit[i] files
    units = 0
    files = ""
  }
  /^[^ ]/ { end_unit(); wanted = /^CMakeFiles\/(sfsdp_core|sfsdp)\.dir\/(sfsdp|Unity)\// }
  /^ / && wanted {
    file = $1
    sub(/^\.\.\/\.\.\//, "", file) # ccache with a base folder writes what the compiler did not
    if (index(file, root) == 1) file = substr(file, length(root) + 1)
    if (file ~ /^sfsdp\/.*\.cc$/) unit[++units] = file; else if (file !~ /\/Unity\//) files = files " " file
  }
  END { end_unit() }' | LC_ALL=C sort >"$scratch/units"
tr ' ' '\n' <"$scratch/units" | LC_ALL=C sort -u | while read -r file; do [[ ! -e $file ]] || echo "$file"; done |
  xargs -r sha256sum >"$scratch/digests"
rules=$({ cat .clang-tidy; "$tidy" --version; } | sha256sum)
# A file per unit that says its state: rules, arguments, and a digest of each file.
mkdir "$scratch/states"
awk -v root="$root" -v rules="$rules" -v into="$scratch/states/" '
  function relative(text,   at) {
    while (at = index(text, root)) text = substr(text, 1, at - 1) "." substr(text, at + length(root))
    return text
  }
  FILENAME ~ /digests$/ { digest[$2] = $1; next }
  FILENAME ~ /json$/ && /^ *"command":/ { command = relative($0); next }
  FILENAME ~ /json$/ && /^ *"file":/ { file = relative($2); gsub(/^"\.\/|",?$/, "", file); arguments[file] = command; next }
  FILENAME ~ /units$/ && $1 in digest { # else removed since
    state = into $1
    gsub(/\//, "|", state); state = into substr(state, length(into) + 1)
    print rules arguments[$1] >state
    for (i = 1; i <= NF; ++i) print $i, digest[$i] >state
    close(state)
  }' "$scratch/digests" "$scratch/compile_commands.json" "$scratch/units"

# What git says has changed, as names without their endings.
base=$(git merge-base HEAD main 2>/dev/null || true)
if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
  base=$(git rev-list -1 --before=$(($(git log -1 --format=%ct) - 6 * 3600)) HEAD)
  [[ -n $base ]] || base=$(git rev-parse --verify --quiet HEAD~1 || true)
fi
declare -A edited
if [[ -n $base ]]; then
  while read -r file; do edited[./${file%.*}]=yes; done < <(git diff --name-only "$base"; git ls-files --others --exclude-standard)
fi

total=0 changed=() unknown=0 clean=()
while read -r key unit; do
  unit=${unit//|//}
  total=$((total + 1))
  if [[ -e $cache/$unit/$key ]]; then
    clean+=("$cache/$unit/$key")
  elif [[ -d $cache/$unit || -n $all || -n ${edited[./${unit%.*}]:-} ]]; then
    changed+=("$unit" "$key")
  else
    unknown=$((unknown + 1))
  fi
done < <(cd "$scratch/states" && find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0r sha256sum)
((total)) || { echo "tidy: $build knows no files; run scripts/build.sh first"; exit 1; }
if [[ -w $cache ]]; then # other runs may prune at the same time
  ((${#clean[@]} == 0)) || touch -c "${clean[@]}"
  find "$cache" -type f -mtime +30 -delete 2>/dev/null || true
  find "$cache" -mindepth 1 -type d -empty -delete 2>/dev/null || true
fi

check_one() { # folder of compile_commands.json, clang-tidy, cache, file, name of its state
  local out status=0
  # flags that only g++ knows are no finding
  out=$("$2" --quiet -p "$1" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument "$4" 2>&1) ||
    status=$?
  # clang 14 cannot digest some views of libstdc++ 12, and says so inside the system's headers; g++ is the judge of what
  # compiles. Everything else counts.
  local findings
  findings=$(grep -E ': (error|warning): ' <<<"$out" | grep -vE '^/usr/.*\[clang-diagnostic-error\]$' || true)
  if [[ -n $findings || ($status -ne 0 && $out != *'[clang-diagnostic-error]'*) ]]; then
    printf '%s\n' "$out"
    return 1
  fi
  [[ -w $3 ]] || return 0
  mkdir -p "$3/$4" && : >"$3/$4/$5" || true
  { ls -t "$3/$4" | tail -n +21 | while read -r old; do rm -f "$3/$4/$old"; done; } 2>/dev/null || true
}
export -f check_one
echo "tidy: $((${#changed[@]} / 2)) of $total files changed"
((unknown == 0)) || echo "tidy: $unknown files were never linted here, and did not change; --all lints them"
((${#changed[@]})) || exit 0
printf '%s\0' "${changed[@]}" >"$scratch/changed"
xargs -0 -n 2 -P "$(nproc)" bash -c 'check_one "$@"' _ "$scratch" "$tidy" "$cache" <"$scratch/changed" &
trap 'kill $! 2>/dev/null; exit 143' TERM INT # else its units go on without us
wait $!
