#!/usr/bin/env bash
# An op of 20 s on one rank raises no alarm: ranks of one host, and ranks that watch each other through the store.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(timeout 250 build/release/core_tests --no-skip --no-colors=true -tc="tcp: an op of 20 s is no fault*")
status=$?
echo "$out"
[[ $status == 0 ]] && grep -q "1 passed | 0 failed" <<<"$out"
