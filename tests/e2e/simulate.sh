#!/usr/bin/env bash
# `sfsdp simulate` on a cluster that is not here: the numbers hang together, the trace is one that a viewer reads, and
# what a user types wrong is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
simulate() { build/release/sfsdp simulate --config configs/llama3_8b.toml --machine machines/dgx_h100.toml "$@"; }

for world in 8 64 512; do simulate --world $world --json >"$dir/$world.json"; done
simulate --world 8 --json --execution eager >"$dir/eager.json"
simulate --world 8 --json --jitter 0.2 >"$dir/jitter.json"
simulate --world 8 --trace "$dir/trace.json" >"$dir/text"
grep -q '^Step .* tokens/s per device, MFU ' "$dir/text" || fail "$(cat "$dir/text")"
python3 - "$dir" <<'PY'
import json, sys
read = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))
one, many, most, eager, jitter = (read(n) for n in ("8", "64", "512", "eager", "jitter"))
for r in (one, many, most, eager, jitter):
    assert r["step_seconds"] >= r["compute_seconds"] > 0 and 0 < r["mfu"] < 1
    assert r["arena_bytes"] >= r["live_bytes"] > 0
    for kind, exposed in r["exposed_seconds"].items():
        assert exposed >= 0  # with jitter more than the collective itself: it waits for the slowest
        assert r is jitter or exposed <= r["communication_seconds"][kind] + 1e-12
assert abs(one["state_bytes"] - 12 * 8030261248 / 8) < 1e6, one["state_bytes"]  # f32: parameter and two moments
assert many["state_bytes"] * 7.9 < one["state_bytes"] < many["state_bytes"] * 8.1
assert eager["step_seconds"] > one["step_seconds"] and eager["live_bytes"] > one["live_bytes"]
assert one["step_seconds"] < jitter["step_seconds"] < 1.25 * one["step_seconds"]
assert most["communication_seconds"]["all_gather"] > many["communication_seconds"]["all_gather"]
events = read("trace")["traceEvents"]
lanes = {e["tid"] for e in events if e["ph"] == "X"}
assert lanes == {0, 1} and all(e["dur"] >= 0 for e in events if e["ph"] == "X")
for lane in lanes:  # nothing overlaps within a lane
    spans = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == lane)
    assert all(a + d <= b + 1 for (a, d), (b, _) in zip(spans, spans[1:]))
PY
simulate --machine nowhere.toml >"$dir/text" 2>&1 && fail "a missing machine file is accepted"
grep -q 'nowhere.toml cannot be read' "$dir/text" || fail "$(cat "$dir/text")"
simulate --execution sideways >"$dir/text" 2>&1 && fail "a wrong execution is accepted"
grep -q 'expected fused or eager' "$dir/text" || fail "$(cat "$dir/text")"
