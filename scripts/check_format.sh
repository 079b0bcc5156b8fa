#!/usr/bin/env bash
# Fails if a C++ file is not as .clang-format wants it; --fix rewrites. Pinned to clang-format 14: versions disagree.
# Exit status 77: could not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/find_llvm_tool.sh
formatter=$(find_llvm_tool clang-format)
if [[ -z $formatter ]]; then
  echo "format not checked: no clang-format 14; install clang-format-14"
  exit 77
fi
mode=(--dry-run -Werror)
[[ ${1:-} == --fix ]] && mode=(-i)
folders=()
for folder in sfsdp tests examples benchmarks; do [[ -d $folder ]] && folders+=("$folder"); done
find "${folders[@]}" \( -name '*.h' -o -name '*.cc' -o -name '*.cpp' \) -print0 |
  xargs -0 -r -n 20 -P "$(nproc)" "$formatter" "${mode[@]}" --style=file
