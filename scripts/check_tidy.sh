#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy, warnings are errors) over what changed in the torch-free core:
#   scripts/check_tidy.sh [preset] [--all]     preset (release): is built, so its build knows what each file includes
# A file is linted if it, or what it includes, differs from its last clean state; build/tidy remembers that. A file that
# was never linted is, if git says that it or its header changed since main; on main itself, since the last commit.
# --all lints every file that is not known to be clean: some 2 minutes on 2 idle cores. Left out for their time are tests
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

declare -A digest
while read -r sum file; do digest[$file]=$sum; done < <(
  find sfsdp -type f \( -name '*.cc' -o -name '*.h' -o -name '*.def' \) -exec sha256sum {} +)
rules=$(cat .clang-tidy)

# One line a file: itself, then what of sfsdp/ it includes.
root=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
units=$(ninja -C "$build" -t deps | awk -v root="$root/" '
  /^[^ ]/ { if (line) print line; line = ""; wanted = /^CMakeFiles\/(sfsdp_core|sfsdp)\.dir\/sfsdp\// }
  /^ / && wanted && index($1, root "sfsdp/") == 1 { line = line (line ? " " : "") substr($1, length(root) + 1) }
  END { if (line) print line }' | sort)
# What git says has changed, as names without their endings.
base=$(git merge-base HEAD main 2>/dev/null || true)
[[ -n $base && $base != "$(git rev-parse HEAD)" ]] || base=$(git rev-parse --verify --quiet HEAD~1 || true)
declare -A edited
if [[ -n $base ]]; then
  while read -r file; do edited[${file%.*}]=yes; done < <(git diff --name-only "$base"; git ls-files --others --exclude-standard)
fi

total=0 changed=() unknown=0
while read -r -a files; do
  unit=${files[0]:-}
  [[ -n $unit && -n ${digest[$unit]:-} ]] || continue # removed since
  total=$((total + 1))
  state=$rules
  for file in "${files[@]}"; do state+=" $file ${digest[$file]:-gone}"; done
  key=$(sha256sum <<<"$state")
  key=${key%% *}
  clean=$(cat "build/tidy/$unit" 2>/dev/null || true)
  if [[ $clean == "$key" ]]; then continue; fi
  if [[ -n $clean || -n $all || -n ${edited[${unit%.*}]:-} ]]; then
    changed+=("$unit" "$key")
    mkdir -p "build/tidy/${unit%/*}"
  else
    unknown=$((unknown + 1))
  fi
done <<<"$units"
((total)) || { echo "tidy: $build knows no files; run scripts/build.sh first"; exit 1; }

check_one() { # build folder, clang-tidy, file, name of its state
  local out status=0
  # flags that only g++ knows are no finding
  out=$("$2" --quiet -p "$1" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument "$3" 2>&1) ||
    status=$?
  # clang 14 cannot digest some views of libstdc++ 12, and says so inside the system's headers; g++ is the judge of what
  # compiles. Everything else counts.
  local findings
  findings=$(grep -E ': (error|warning): ' <<<"$out" | grep -vE '^/usr/.*\[clang-diagnostic-error\]$' || true)
  if [[ -n $findings || ($status -ne 0 && $out != *'[clang-diagnostic-error]'*) ]]; then
    printf '%s\n' "$out"
    return 1
  fi
  echo "$4" >"build/tidy/$3"
}
export -f check_one
echo "tidy: $((${#changed[@]} / 2)) of $total files changed"
((unknown == 0)) || echo "tidy: $unknown files were never linted here, and did not change; --all lints them"
((${#changed[@]})) || exit 0
printf '%s\0' "${changed[@]}" | xargs -0 -n 2 -P "$(nproc)" bash -c 'check_one "$@"' _ "$build" "$tidy"
