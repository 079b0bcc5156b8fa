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
run 2 exchange "${axis[@]}" --training.local_batch_size 2 --parallelism.expert_parallel_dispatch exchange
run 2 exchange_sockets "${axis[@]}" --training.local_batch_size 2 --parallelism.expert_parallel_dispatch exchange \
  --comm.shared_memory false --exec.lanes threads
run 2 rounds "${axis[@]}" --training.local_batch_size 2 --parallelism.expert_parallel_capacity 0.5
run 2 rounds_measured "${axis[@]}" --training.local_batch_size 2 --parallelism.expert_parallel_capacity 0.5 --exec.products measured
run 4 rounds_threads "${axis[@]}" --training.local_batch_size 1 --parallelism.expert_parallel_capacity 0.5 --exec.lanes threads
run 2 rounds_reference "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4 \
  --parallelism.expert_parallel_capacity 0.75 --exec.executor reference
run 4 tensor "${axis[@]}" --training.local_batch_size 2 --parallelism.tensor_parallel_degree 2 --parallelism.expert_parallel_dispatch exchange
run 4 tensor_rounds "${axis[@]}" --training.local_batch_size 2 --parallelism.tensor_parallel_degree 2 --parallelism.expert_parallel_capacity 0.5
move_between_meshes 2
expect_losses_of_one ep sockets reference fsdp micro_batches moved exchange exchange_sockets rounds rounds_measured rounds_threads rounds_reference \
  tensor tensor_rounds

# How uneven choices are is told, and how many rounds they took.
python3 - "$dir" <<'EOF'
import json, sys
for run, rounds in (("one", (1, 1)), ("ep", (1, 1)), ("rounds", (2, 4)), ("rounds_threads", (2, 4)), ("tensor_rounds", (2, 4))):
    for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl"):
        step = json.loads(line)
        assert 1 <= step["expert_tokens"] <= 8, step
        assert 1 <= step["expert_rows"] <= (1 if run == "one" else 2), step
        assert rounds[0] <= step["expert_rounds"] <= rounds[1], (run, step)
EOF

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

# One of two is killed, or stops, over shared memory and over sockets, as tokens are gathered and as they are exchanged.
for signal in KILL STOP; do
  for dispatch in gather exchange; do
    fault $signal 2 1 $dispatch "${axis[@]}" --parallelism.expert_parallel_dispatch $dispatch
    fault $signal 2 1 $dispatch-sockets "${axis[@]}" --parallelism.expert_parallel_dispatch $dispatch --comm.shared_memory false
  done
done
