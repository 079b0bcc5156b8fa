#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy, warnings are errors) over the torch-free core: scripts/check_tidy.sh [preset]
# Expects that preset (release) to be built: the build knows what each file includes. A file that is as it was when last
# found clean, with all it includes, is passed over, by content: build/tidy holds a name per clean state. All 44 files
# take 2 minutes on 2 idle cores; left out for their time are tests and what includes LibTorch. Pinned to clang-tidy 14:
# versions disagree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/${1:-release}
source scripts/find_llvm_tool.sh
tidy=$(find_llvm_tool clang-tidy)
if [[ -z $tidy ]]; then
  echo "tidy not checked: no clang-tidy 14; install clang-tidy-14"
  exit 0
fi
mkdir -p build/tidy
find build/tidy -type f -mtime +30 -delete

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
total=0 changed=()
while read -r -a files; do
  [[ ${#files[@]} -gt 0 && -n ${digest[${files[0]}]:-} ]] || continue # removed since
  total=$((total + 1))
  state=$rules
  for file in "${files[@]}"; do state+=" $file ${digest[$file]:-gone}"; done
  key=$(sha256sum <<<"$state")
  key=${key%% *}
  if [[ -e build/tidy/$key ]]; then touch "build/tidy/$key"; else changed+=("${files[0]}" "$key"); fi
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
  touch "build/tidy/$4"
}
export -f check_one
echo "tidy: $((${#changed[@]} / 2)) of $total files changed since they were last clean"
((${#changed[@]})) || exit 0
printf '%s\0' "${changed[@]}" | xargs -0 -n 2 -P "$(nproc)" bash -c 'check_one "$@"' _ "$build" "$tidy"
