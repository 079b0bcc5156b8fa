# SPDX-License-Identifier: BSD-3-Clause
# To be sourced: find_llvm_tool NAME prints a NAME of version 14, whose opinions the sources follow, or nothing.
find_llvm_tool() {
  local candidate
  for candidate in "$1-14" "$1"; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
      echo "$candidate"
      return
    fi
  done
}
