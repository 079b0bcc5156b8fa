#!/usr/bin/env bash
# `sfsdp plan --search`: what it calls best is what `simulate` says of these configurations, its order is the simulator's, and
# no configuration that it looked at is better.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/cases.py" <<'PY'
import json, subprocess
def key(options):
    return json.dumps(options, sort_keys=True)
def simulated(dir, options, cases):  # what `simulate` says of each case, by its key
    with open(f"{dir}/cases.jsonl", "w") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)
    lines = subprocess.run(["build/release/sfsdp", "simulate", *options, "--sweep", file.name], capture_output=True, text=True, check=True)
    by_case = {key(l["case"]): l for l in map(json.loads, lines.stdout.splitlines())}
    assert len(by_case) == len(cases)
    return by_case
PY
export PYTHONPATH=$dir
base=(--config configs/llama3_debug.toml --machine a100_400g)
data_alone=(--parallelism.tensor_parallel_degree 1 --parallelism.context_parallel_degree=1)
search=(build/release/sfsdp plan --search "${base[@]}" --world 12 --training.global_batch_size 48 "${data_alone[@]}")
"${search[@]}" --json >"$dir/found.json"
"${search[@]}" --json --threads 1 --top 3 >"$dir/top3.json"
python3 - "$dir" "${base[@]}" <<'PY'
import json, sys
from cases import key, simulated
dir, base = sys.argv[1], sys.argv[2:]
found, top3 = (json.load(open(f"{dir}/{name}.json")) for name in ("found", "top3"))
options = [c["options"] for c in found["estimated"]]
# shards 1, 2, 3, 4, 6, 12; 4 sequences a rank have 3 divisors; 3 kinds of remat; one stage without shards, else 4
assert len(options) == 3 * 3 * (1 + 5 * 4) and len({json.dumps(o) for o in options}) == len(options), len(options)
assert len(found["best"]) == 10 and found["best"][:3] == top3["best"], top3["best"]
saved = simulated(dir, base, options)
of = lambda c: saved[key(c["options"])]
for c in found["best"]:
    assert of(c)["step_seconds"] == c["step_seconds"] and of(c)["peak_bytes"] == c["peak_bytes"] and c["fits"], (c, of(c))
times = sorted(l["step_seconds"] for l in saved.values() if l["fits"])
assert [c["step_seconds"] for c in found["best"]] == times[:10], (times[:10], found["best"])
# Estimates copy all gradients into their buckets; what is simulated saves some of that, by the mesh.
copying = simulated(dir, [*base, "--debug.disable_pass", "write_in_buckets"], options)
for c in found["estimated"]:
    exact, saving = copying[key(c["options"])], of(c)
    assert abs(c["step_seconds"] / exact["step_seconds"] - 1) < 0.01 and abs(c["peak_bytes"] / exact["peak_bytes"] - 1) < 0.05, (c, exact)
    assert 0.99 < c["step_seconds"] / saving["step_seconds"] < 1.03, (c, saving)
PY
# Another system's steps are not estimated: all are simulated, as `simulate` does with the same options.
small=(build/release/sfsdp plan --search "${base[@]}" --world 2 --training.global_batch_size 4 "${data_alone[@]}")
system=(--simulate.execution eager --simulate.rope fused)
"${small[@]}" --json >"$dir/ours.json"
"${small[@]}" --json "${system[@]}" >"$dir/eager.json"
python3 - "$dir" "${base[@]}" "${system[@]}" <<'PY'
import json, sys
from cases import key, simulated
dir, options = sys.argv[1], sys.argv[2:]
ours, eager = (json.load(open(f"{dir}/{name}.json")) for name in ("ours", "eager"))
assert {key(c["options"]) for c in ours["estimated"]} == {key(c["options"]) for c in eager["estimated"]}
by_case = simulated(dir, options, [c["options"] for c in eager["estimated"]])
for c in eager["estimated"]:
    assert (c["step_seconds"], c["peak_bytes"], c["fits"]) == tuple(by_case[key(c["options"])][n] for n in ("step_seconds", "peak_bytes", "fits")), c
assert [c["step_seconds"] for c in eager["best"]] == sorted(c["step_seconds"] for c in eager["estimated"] if c["fits"])[: len(eager["best"])]
assert eager["best"][0]["step_seconds"] > ours["best"][0]["step_seconds"]
PY
"${small[@]}" "${system[@]}" >"$dir/text"
grep -q ' configurations simulated, ' "$dir/text" || { cat "$dir/text"; exit 1; }
"${search[@]}" >"$dir/text"
grep -q '^Model llama3 debugmodel on 12 × A100 .*, 48 sequences a step: 189 configurations estimated, ' "$dir/text" || { cat "$dir/text"; exit 1; }
[[ $(grep -c '^dp_replicate=' "$dir/text") == 10 ]]
grep -q '^  remat full: .* ms more compute' "$dir/text" || { cat "$dir/text"; exit 1; }
"${search[@]}" --parallelism.fsdp_memory_gib 0.03 >"$dir/tight"
grep -q 'does not fit, at least ' "$dir/tight" || { cat "$dir/tight"; exit 1; }
# Model axes are chosen too: here 6 sequences a step are to be shared by 12 ranks. What is said of each is what `simulate` says. 6 does not
# divide the heads.
sed 's/^devices_per_node.*/devices_per_node = 12/' machines/a100_400g.toml >"$dir/twelve.toml"
twelve=(--config configs/llama3_debug.toml --machine "$dir/twelve.toml" --world 12 --training.seq_len 512)
few=(build/release/sfsdp plan --search "${twelve[@]}" --training.global_batch_size 6)
"${few[@]}" --json >"$dir/few.json"
"${few[@]}" --json --parallelism.tensor_parallel_degree 4 >"$dir/four.json"
python3 - "$dir" "${twelve[@]}" <<'PY'
import json, sys
from cases import key, simulated
dir, twelve = sys.argv[1], sys.argv[2:]
few, four = (json.load(open(f"{dir}/{name}.json")) for name in ("few", "four"))
def degrees(c):
    return tuple(c["options"][f"parallelism.{axis}_parallel_degree"] for axis in ("tensor", "context"))
seen = {degrees(c) for c in few["estimated"]}
# A look at tp 2 and 4 and, beside the best, at each cp; the best wholly.
best = degrees(few["best"][0])
assert {(2, 1), (4, 1)} <= seen and all(tp * cp in (2, 4) for tp, cp in seen), seen
wholly = [c for c in few["estimated"] if degrees(c) == best]
assert len(wholly) >= 30 and all(len([c for c in few["estimated"] if degrees(c) == d]) <= 6 for d in seen - {best}), (best, seen)
assert {degrees(c)[0] for c in four["estimated"]} == {4}
assert few["best"][0]["step_seconds"] <= four["best"][0]["step_seconds"]
options = [c["options"] for c in few["estimated"]]
saved, copying = simulated(dir, twelve, options), simulated(dir, [*twelve, "--debug.disable_pass", "write_in_buckets"], options)
for c in few["best"]:
    of = saved[key(c["options"])]
    assert of["step_seconds"] == c["step_seconds"] and of["peak_bytes"] == c["peak_bytes"], c
for c in few["estimated"]:
    exact = copying[key(c["options"])]
    assert abs(c["step_seconds"] / exact["step_seconds"] - 1) < 0.01 and abs(c["peak_bytes"] / exact["peak_bytes"] - 1) < 0.05, (c, exact)
PY
"${few[@]}" >"$dir/text"
grep -q '^Left out cp=1,tp=6: tensor_parallel: ' "$dir/text" || { cat "$dir/text"; exit 1; }
grep -q '^Left out cp=1,tp=1: training.global_batch_size = 6 on 12 ranks' "$dir/text" || { cat "$dir/text"; exit 1; }
# Experts too, beside tp or not; the search keeps what the command line says of them.
mixture=(--config configs/deepseek_v3_debug.toml --machine a100_400g --training.seq_len 256 --parallelism.expert_parallel_capacity 1.5)
experts=(build/release/sfsdp plan --search "${mixture[@]}" --world 8 --training.global_batch_size 8)
"${experts[@]}" --json >"$dir/experts.json"
"${experts[@]}" --json --parallelism.expert_parallel_degree 4 >"$dir/four.json"
python3 - "$dir" "${mixture[@]}" <<'PY'
import json, sys
from cases import key, simulated
dir, mixture = sys.argv[1], sys.argv[2:]
free, four = (json.load(open(f"{dir}/{name}.json")) for name in ("experts", "four"))
def degrees(c):
    return tuple(c["options"][f"parallelism.{axis}_parallel_degree"] for axis in ("tensor", "context", "expert"))
seen = {degrees(c) for c in free["estimated"]}
assert {ep for tp, cp, ep in seen if tp == cp == 1} == {1, 2, 4, 8} and any(tp > 1 for tp, cp, ep in seen), seen
assert {degrees(c)[2] for c in four["estimated"]} == {4} and any(degrees(c)[0] > 1 for c in four["estimated"]), four["estimated"]
assert free["best"][0]["step_seconds"] <= four["best"][0]["step_seconds"]
for found in (free, four):
    options = [c["options"] for c in found["estimated"]]
    saved = simulated(dir, mixture, options)
    copying = simulated(dir, [*mixture, "--debug.disable_pass", "write_in_buckets"], options)
    for c in found["best"]:
        of = saved[key(c["options"])]
        assert of["step_seconds"] == c["step_seconds"] and of["peak_bytes"] == c["peak_bytes"], c
    for c in found["estimated"]:
        exact = copying[key(c["options"])]
        assert abs(c["step_seconds"] / exact["step_seconds"] - 1) < 0.01 and abs(c["peak_bytes"] / exact["peak_bytes"] - 1) < 0.05, (c, exact)
PY
! "${search[@]}" --training.global_batch_size 50 2>"$dir/err" && grep -q 'expected a multiple of the ranks; try 60' "$dir/err"
! build/release/sfsdp plan --search --config configs/llama3_debug.toml --world 2 2>"$dir/err" && grep -q 'expected --machine M' "$dir/err"
