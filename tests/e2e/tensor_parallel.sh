#!/usr/bin/env bash
# Processes that share the products of each layer (tp) train the debug model to the losses of one process, over shared memory and
# over sockets, with FSDP beside them, with each executor; one that is killed is named by the others, with its collective.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --exec.products by_processor)
axis=(--parallelism.tensor_parallel_degree 2)
source tests/e2e/model_axes.bash
$sfsdp "${common[@]}" --training.steps 4 --training.local_batch_size 4 --job.dump_folder "$dir/one"
run 2 tp "${axis[@]}" --training.local_batch_size 4
run 2 sockets "${axis[@]}" --training.local_batch_size 4 --comm.shared_memory false
run 2 whole_rows "${axis[@]}" --training.local_batch_size 4 --parallelism.no_enable_sequence_parallel
run 2 reference "${axis[@]}" --training.local_batch_size 4 --exec.executor reference
run 2 logits "${axis[@]}" --training.local_batch_size 4 --parallelism.disable_loss_parallel
run 4 fsdp "${axis[@]}" --training.local_batch_size 2
run 4 micro_batches "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4
move_between_meshes 4
expect_losses_of_one tp sockets whole_rows logits reference fsdp micro_batches moved

# A vocabulary that two ranks do not divide: 130 rows and 129.
(
  dir=$dir/odd
  common+=(--model.args.vocab_size 259)
  $sfsdp "${common[@]}" --training.steps 4 --training.local_batch_size 4 --job.dump_folder "$dir/one"
  run 2 tp "${axis[@]}" --training.local_batch_size 4
  run 2 sockets "${axis[@]}" --training.local_batch_size 4 --comm.shared_memory false
  run 4 fsdp "${axis[@]}" --training.local_batch_size 2
  move_between_meshes 4
  expect_losses_of_one tp sockets fsdp moved
)

# What a plan says: a rank's weights, and what passes between ranks of tp.
inspect() { $sfsdp inspect --config configs/llama3_debug.toml --world 2 --training.seq_len 32 --model.args.n_layers 2 "$@"; }
inspect "${axis[@]}" --json | python3 -c '
import json, sys
r = json.load(sys.stdin)
assert r["mesh"] == "[dp_shard=1, tp=2]", r["mesh"]
assert r["collectives"]["reduce_scatter"]["count"] > 0, r["collectives"]
'

# Degrees and plans that do not fit are told with the cure.
expect "--parallelism.tensor_parallel_degree 2" --parallelism.tensor_parallel_degree 3
expect "of a vocabulary of 259 that tp = 2 does not divide, are gathered for the loss" "${axis[@]}" --model.args.vocab_size 259 --parallelism.disable_loss_parallel
expect "parallelism.tensor_parallel_constraints: constrain(\"layers.*.atention\", Replicate()) names no module" "${axis[@]}" --parallelism.tensor_parallel_constraints "layers.*.atention=whole"
expect "names no parameter" "${axis[@]}" --parallelism.tensor_parallel_plan "*.q_proj=0"
expect "expected a pattern, = and a dimension" "${axis[@]}" --parallelism.tensor_parallel_plan "*.wq"

# One of two is killed, or stops.
fault KILL
fault STOP
