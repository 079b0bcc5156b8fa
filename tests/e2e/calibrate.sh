#!/usr/bin/env bash
# `sfsdp calibrate` measures two ranks on this machine and writes a file that simulate takes; what it predicts of the peak
# is what training allocates. No time is checked: other programs run here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
sfsdp=build/release/sfsdp
tiny=(--model.args.dim 64 --model.args.n_layers 2 --training.seq_len 32)
"$sfsdp" calibrate --config configs/llama3_debug.toml --ranks 2 --out "$dir/new/cpu.toml" "${tiny[@]}" \
  --exec.executor reference --calibrate.seconds 1 --calibrate.max_mib 1 >"$dir/text"
grep -q "^Wrote $dir/new/cpu.toml" "$dir/text" || fail "$(cat "$dir/text")"
grep -Eq '^The step, run between the measurements: predicted [0-9.]+ ms, took [0-9.]+ ms .*; peak predicted' "$dir/text" ||
  fail "$(cat "$dir/text")"
simulate() { "$sfsdp" simulate --config configs/llama3_debug.toml --machine "$dir/new/cpu.toml" --world 2 --json "${tiny[@]}" "$@"; }
simulate --simulate.execution reference >"$dir/reference.json"
simulate --simulate.execution fused >"$dir/fused.json"
"$sfsdp" launch -n 2 -- train --job.config_file configs/llama3_debug.toml --training.steps 2 --job.dump_folder "$dir/run" \
  --exec.executor reference \
  "${tiny[@]}" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
python3 - "$dir" <<'PY'
import json, re, sys
folder = sys.argv[1]
text = open(f"{folder}/new/cpu.toml").read()
products = re.findall(r'op = "aten.mm".*flops = ([0-9.e+]+).* us = ([0-9.e+-]+)', text)
assert len(products) >= 6, text  # of q, k, v, o and the feed-forward: forward, and two backward forms
assert text.count("scaled_dot_product") >= 2 and text.count('"adamw"') >= 1 and text.count('"aten.clone"') >= 4
for kind in ("all_gather", "reduce_scatter", "all_reduce"):
    points = re.findall(rf'kind = "{kind}", ranks = 2, bytes = ([0-9.e+]+), us = ([0-9.e+-]+)', text)
    assert {1024.0 * 4**i for i in range(6)} <= {float(p[0]) for p in points}, points
    assert all(float(p[1]) > 0 for p in points)
reference, fused = (json.load(open(f"{folder}/{name}.json")) for name in ("reference", "fused"))
assert reference["step_seconds"] > reference["compute_seconds"] > 0
exposed, communicated = (sum(reference[k].values()) for k in ("exposed_seconds", "communication_seconds"))
assert abs(exposed - communicated) < 1e-9, "collectives block"
steps = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
actual = steps[-1]["memory_gib"] * 2**30
assert abs(reference["peak_bytes"] / actual - 1) < 0.02, (reference["peak_bytes"], actual)
PY
# With the planned executor: each kernel of the plan stands in the file, and the simulation of that plan is their sum.
"$sfsdp" calibrate --config configs/llama3_debug.toml --ranks 2 --out "$dir/planned.toml" "${tiny[@]}" \
  --training.local_batch_size 4 --training.global_batch_size 16 --calibrate.seconds 1 --calibrate.max_mib 1 >"$dir/text"
grep -Eq '^The step, run between the measurements: predicted [0-9.]+ ms, took [0-9.]+ ms .*; planned peak' "$dir/text" ||
  fail "$(cat "$dir/text")"
"$sfsdp" simulate --config configs/llama3_debug.toml --machine "$dir/planned.toml" --world 2 --json "${tiny[@]}" \
  --training.local_batch_size 4 --training.global_batch_size 16 >"$dir/planned.json"
python3 - "$dir" <<'PY'
import json, re, sys
folder = sys.argv[1]
text, said = open(f"{folder}/planned.toml").read(), open(f"{folder}/text").read()
kernels = re.findall(r'\{ops = "([^"]+)", us = ([0-9.e+-]+)(?:, first_us = ([0-9.e+-]+))?\}', text)
assert len(kernels) > 20 and all(float(us) > 0 for _, us, _ in kernels), text
assert any("adamw" in ops for ops, _, _ in kernels) and any("accumulate" in ops and first for ops, _, first in kernels), text
assert "inline_collectives = true" in text
planned = json.load(open(f"{folder}/planned.json"))
predicted = float(re.search(r"predicted ([0-9.]+) ms", said).group(1)) / 1e3
assert abs(planned["step_seconds"] / predicted - 1) < 0.01, (planned["step_seconds"], predicted)
exposed, communicated = (sum(planned[k].values()) for k in ("exposed_seconds", "communication_seconds"))
assert abs(exposed - communicated) < 1e-9, "collectives take the time of what computes"
PY
"$sfsdp" calibrate --config configs/llama3_debug.toml --ranks 0 >"$dir/text" 2>&1 && fail "zero ranks are taken"
grep -q 'expected a number from 1 to' "$dir/text" || fail "$(cat "$dir/text")"
"$sfsdp" calibrate --calibrate.secnds 3 >"$dir/text" 2>&1 && fail "a misspelt option is taken"
grep -q 'did you mean --calibrate.seconds?' "$dir/text" || fail "$(cat "$dir/text")"
