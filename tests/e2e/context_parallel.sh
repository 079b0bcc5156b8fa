#!/usr/bin/env bash
# Processes that share the sequence (cp) train the debug model to the losses of one process, over shared memory and over sockets,
# with FSDP and tp beside them, with each executor and order; one that is killed or stopped is named, with its collective.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --exec.products by_processor)
axis=(--parallelism.context_parallel_degree 2)
source tests/e2e/model_axes.bash
$sfsdp "${common[@]}" --training.steps 4 --training.local_batch_size 4 --job.dump_folder "$dir/one"
run 2 cp "${axis[@]}" --training.local_batch_size 4
run 2 sockets "${axis[@]}" --training.local_batch_size 4 --comm.shared_memory false
run 2 ranges "${axis[@]}" --training.local_batch_size 4 --parallelism.context_parallel_load_balancer none
run 2 heads "${axis[@]}" --training.local_batch_size 4 --parallelism.context_parallel_rotate_method alltoall
run 2 heads_by_sockets "${axis[@]}" --training.local_batch_size 4 --parallelism.context_parallel_rotate_method alltoall --comm.shared_memory false
run 2 ring "${axis[@]}" --training.local_batch_size 4 --parallelism.context_parallel_rotate_method ring
run 2 ring_by_sockets "${axis[@]}" --training.local_batch_size 4 --parallelism.context_parallel_rotate_method ring --comm.shared_memory false
run 2 reference "${axis[@]}" --training.local_batch_size 4 --exec.executor reference
run 4 fsdp "${axis[@]}" --training.local_batch_size 2
run 4 tensor "${axis[@]}" --training.local_batch_size 4 --parallelism.tensor_parallel_degree 2
run 4 micro_batches "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4
move_between_meshes 4
expect_losses_of_one cp sockets ranges reference fsdp tensor micro_batches moved
expect_losses_of_one heads heads_by_sockets
expect_losses_of_one ring ring_by_sockets

# What a plan says: parameters are sharded over cp too, and attention is that of a part of the queries.
inspect() { $sfsdp inspect --config configs/llama3_debug.toml --training.seq_len 32 --model.args.n_layers 2 "$@"; }
inspect "${axis[@]}" --world 4 --json | python3 -c '
import json, sys
r = json.load(sys.stdin)
assert r["mesh"] == "[dp_shard=2, cp=2]", r["mesh"]
'
plan=$($sfsdp plan --config configs/llama3_debug.toml --mesh dp_shard=2,cp=2 --parallelism.context_parallel_rotate_method ring --explain layers.0)
grep -q "permute of" <<<"$plan"

# Degrees and lengths that do not fit are told with the cure.
expect "--parallelism.context_parallel_degree 2" --parallelism.context_parallel_degree 3
expect "expected a multiple of 4, or no parallelism.context_parallel_load_balancer" "${axis[@]}" --training.seq_len 34

# One of two is killed, or stops, over shared memory and over sockets, with each method.
for signal in KILL STOP; do
  for method in allgather alltoall ring; do
    fault $signal 2 1 $method "${axis[@]}" --parallelism.context_parallel_rotate_method $method
    fault $signal 2 1 $method-sockets "${axis[@]}" --parallelism.context_parallel_rotate_method $method --comm.shared_memory false
  done
done
