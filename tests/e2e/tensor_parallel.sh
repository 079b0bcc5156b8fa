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
async=(--parallelism.enable_async_tensor_parallel --parallelism.async_tensor_parallel_sites all)
run 2 async "${axis[@]}" --training.local_batch_size 4 "${async[@]}"
run 2 async_sockets "${axis[@]}" --training.local_batch_size 4 "${async[@]}" --comm.shared_memory false
run 4 async_positions "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4 "${async[@]}"
run 4 fsdp "${axis[@]}" --training.local_batch_size 2
run 4 micro_batches "${axis[@]}" --training.local_batch_size 1 --training.global_batch_size 4
move_between_meshes 4
expect_losses_of_one async async_sockets async_positions
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

# Which products are computed part by part: those of a block, and the head's.
explained=$($sfsdp plan --config configs/llama3_debug.toml --mesh dp_shard=2,tp=2 "${async[@]}" --explain layers.0)
grep -q 'products part by part: 49 sites, 49 taken, 0 refused' <<<"$explained"
grep -q 'bwd  layers.\*.attention.wv  reduce_scatter of 512.00 KiB beside 3 products: taken  × 6' <<<"$explained"

# Degrees and plans that do not fit are told with the cure.
expect "--parallelism.tensor_parallel_degree 2" --parallelism.tensor_parallel_degree 3
expect "of a vocabulary of 259 that tp = 2 does not divide, are gathered for the loss" "${axis[@]}" --model.args.vocab_size 259 --parallelism.disable_loss_parallel
expect "parallelism.tensor_parallel_constraints: constrain(\"layers.*.atention\", Replicate()) names no module" "${axis[@]}" --parallelism.tensor_parallel_constraints "layers.*.atention=whole"
expect "names no parameter" "${axis[@]}" --parallelism.tensor_parallel_plan "*.q_proj=0"
expect "expected a pattern, = and a dimension" "${axis[@]}" --parallelism.tensor_parallel_plan "*.wq"

expect "parallelism.fsdp_machine" "${axis[@]}" --parallelism.enable_async_tensor_parallel
expect "none is faster part by part" "${axis[@]}" --parallelism.enable_async_tensor_parallel --parallelism.fsdp_machine dgx_h100
expect "parallelism.tensor_parallel_degree = 1" --parallelism.enable_async_tensor_parallel
expect "parallelism.enable_sequence_parallel" "${axis[@]}" "${async[@]}" --parallelism.no_enable_sequence_parallel

# One of two is killed, or stops, over shared memory and over sockets.
for signal in KILL STOP; do
  fault $signal 2 1 tp "${axis[@]}"
  fault $signal 2 1 sockets "${axis[@]}" --comm.shared_memory false
done
