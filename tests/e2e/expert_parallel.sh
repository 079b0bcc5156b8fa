#!/usr/bin/env bash
# Processes with experts of their own (ep) train the debug mixture to the losses of one process, over shared memory and over sockets,
# with FSDP and micro-batches, with each executor, and from each other's checkpoints; one that is killed or stopped is named, with its
# collective.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/deepseek_v3_debug.toml --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --exec.products by_processor)
axis=(--parallelism.expert_parallel_degree 2)
source tests/e2e/model_axes.bash
$sfsdp "${common[@]}" --training.steps 4 --training.local_batch_size 4 --job.dump_folder "$dir/one"
run 2 ep "${axis[@]}" --training.local_batch_size 2
run 2 sockets "${axis[@]}" --training.local_batch_size 2 --comm.shared_memory false
run 2 reference "${axis[@]}" --training.local_batch_size 2 --exec.executor reference
run 4 fsdp "${axis[@]}" --training.local_batch_size 1
run 2 micro_batches "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4
# Two steps by two ranks of ep, which one process goes on from, and two of data parallelism from its checkpoint.
saved=(--lr_scheduler.total_steps 4 --checkpoint.enable --checkpoint.interval 1 --checkpoint.no_last_save_model_only)
run 2 moved "${axis[@]}" --training.local_batch_size 2 "${saved[@]}" --training.steps 2
$sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/moved" "${saved[@]}" --training.steps 3
run 2 moved --training.local_batch_size 2 "${saved[@]}"
python3 - "$dir" <<'PY'
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
one = rows("one")
assert len(one) == 4
for name in ("ep", "sockets", "reference", "fsdp", "micro_batches", "moved"):
    for a, b in zip(one, rows(name), strict=True):
        assert a["lr"] == b["lr"] and a["tokens"] == b["tokens"], (name, a, b)
        assert abs(a["loss"] - b["loss"]) <= 1e-6 * a["loss"], (name, a, b)
        assert abs(a["grad_norm"] - b["grad_norm"]) <= 5e-6 * a["grad_norm"], (name, a, b)
for a, b in zip(rows("ep"), rows("sockets"), strict=True):  # sums are in the order of the ranks, whatever carries them
    assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
PY

# What a plan says: ep takes its ranks from those that share out parameters.
$sfsdp inspect --config configs/deepseek_v3_debug.toml "${axis[@]}" --world 4 --json | python3 -c '
import json, sys
r = json.load(sys.stdin)
assert r["mesh"] == "[dp_shard=2, ep=2]", r["mesh"]
'

# Degrees that do not fit are told with the cure.
expect "--parallelism.expert_parallel_degree 2" --parallelism.expert_parallel_degree 3
expect "expected 1, 2 or 3" "${axis[@]}" --parallelism.zero_stage 0
expect "the nearest below is ep = 1" "${axis[@]}" --model.args.num_experts 7

# One of two is killed, or stops.
fault KILL
fault STOP
