#!/usr/bin/env bash
# `sfsdp simulate --sweep`: each line is what `simulate --json` says of that configuration alone, in the order of the
# cases; a case that is refused says why, and the others go on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/cases.jsonl" <<'JSON'
{"mesh": ["dp_shard=8", "dp_replicate=2,dp_shard=4"], "training": {"local_batch_size": [1, 2], "global_batch_size": 32}}
{"world": 4, "activation_checkpoint": {"mode": ["full", "selective", "auto"], "selective_ac_option": "op"}}
{"world": 4, "simulate.execution": ["eager", "compile", "reference"], "machine": "a100_80g"}
{"world": 8, "parallelism.zero_stage": [0, 1, 2], "training.mixed_precision_param": ["float32", "bfloat16"], "parallelism.tensor_parallel_degree": 2}
{"world": 6, "training.loss_chunks": [1, 4], "parallelism.fsdp_layout": ["flat", "dim0"]}
{"world": 4, "debug.disable_pass": [["canonicalise"], ["prefetch_gathers", "sink_waits"]]}
{"world": 4, "model.name": "gpt", "model.flavor": "124M", "training.seq_len": 256, "optimizer.name": ["AdamW", "SGD"]}
{"world": 4, "training.dtype": "bfloat16", "simulate.jitter": 0.1, "simulate.seed": 3, "parallelism.fsdp_wrap": ["auto", "search"]}
{"world": 3, "mesh": "dp_shard=2"}
{"world": 4, "training.seq_lenn": 128}
{"world": 4, "trace": "/dev/null"}
{"world": 4, "machine": "none"}
not json
{"world": 2}
{"world": 2, "compile.enable": [true, false], "optimizer.momentum": 0.5}
{"world": 2, "compile.enable": false, "simulate.execution": "fused"}
{"world": 2, "parallelism.pipeline_parallel_degree": 2}
JSON
base=(--config configs/llama3_debug.toml --machine dgx_h100)
build/release/sfsdp simulate "${base[@]}" --sweep "$dir/cases.jsonl" >"$dir/lines" 2>"$dir/err"
grep -q '^36 configurations, 6 refused, in ' "$dir/err" || { cat "$dir/err"; exit 1; }
build/release/sfsdp simulate "${base[@]}" --sweep "$dir/cases.jsonl" --threads 1 2>/dev/null | cmp - "$dir/lines"
python3 - "$dir/lines" "${base[@]}" <<'PY'
import json, subprocess, sys
lines, base = [json.loads(line) for line in open(sys.argv[1])], sys.argv[2:]
text = lambda v: "None" if v is None else ",".join(v) if isinstance(v, list) else str(v).lower() if isinstance(v, bool) else str(v)
assert [l["case"]["training.local_batch_size"] for l in lines[:4]] == [1, 2, 1, 2]
wrong = [l["error"] for l in lines if "error" in l]
expected = ["parallelism.data_parallel_replicate_degree = 1", "unknown flag --training.seq_lenn", "--trace in a case", "none", "cases.jsonl:13", "pipeline_parallel_degree"]
assert len(wrong) == len(expected) and all(e in w for e, w in zip(expected, wrong)), wrong
compiled, eager, ours = lines[-4:-1]
momentum = "optimizer.momentum changes nothing: it belongs to SGD"
assert [r["execution"] for r in (compiled, eager, ours)] == ["fused", "eager", "fused"]
assert compiled["notes"] == [momentum] and momentum in eager["notes"] and "eager mode" in eager["notes"][0], eager
assert "notes" not in ours
for line in lines:
    case = line.pop("case")
    if "error" in line and ("trace" in case or not case):
        continue
    alone = subprocess.run(["build/release/sfsdp", "simulate", *base, "--json", *(f"--{k}={text(v)}" for k, v in case.items())],
                           capture_output=True, text=True)
    said = {"error": alone.stderr.removeprefix("error: ").rstrip("\n")} if alone.returncode else json.loads(alone.stdout)
    assert said == line, (case, said, line)
PY
for option in --trace --html; do
  status=0
  build/release/sfsdp simulate "${base[@]}" --world 2 --sweep "$dir/cases.jsonl" $option "$dir/x" >"$dir/out" 2>"$dir/err" || status=$?
  [[ $status == 2 ]] || { echo "exit status $status where all cases are refused, expected 2"; exit 1; }
  grep -q -e "$option in a case" "$dir/out"
done
