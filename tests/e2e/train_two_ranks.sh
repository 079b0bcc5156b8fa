#!/usr/bin/env bash
# Two processes train the debug model with FSDP; one process with the same global batch reports the same losses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.steps 4 --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000)
$sfsdp launch -n 2 --log-rank 0 -- "${common[@]}" --training.local_batch_size 2 --job.dump_folder "$dir/two"
$sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/one"
python3 - "$dir" <<'PY'
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
one, two = rows("one"), rows("two")
assert len(one) == len(two) == 4, (len(one), len(two))
for a, b in zip(one, two):
    assert a["lr"] == b["lr"] and a["tokens"] == b["tokens"], (a, b)
    assert abs(a["loss"] - b["loss"]) <= 1e-6 * a["loss"], (a, b)
    assert abs(a["grad_norm"] - b["grad_norm"]) <= 5e-6 * a["grad_norm"], (a, b)
PY
