#!/usr/bin/env bash
# Eight processes as dp_shard 2 x cp 2 x tp 2: one that is killed or stopped is named by one that lives, with its collective, over shared
# memory and over sockets; and what they train before is what one process does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --exec.products by_processor)
axis=(--parallelism.context_parallel_degree 2 --parallelism.tensor_parallel_degree 2)
source tests/e2e/model_axes.bash
$sfsdp "${common[@]}" --training.steps 4 --training.local_batch_size 4 --job.dump_folder "$dir/one"
run 8 eight "${axis[@]}" --training.local_batch_size 2
run 8 sockets "${axis[@]}" --training.local_batch_size 2 --comm.shared_memory false
expect_losses_of_one eight sockets

# Ranks of every place along the axes.
fault KILL 8 5 gathered "${axis[@]}" --training.local_batch_size 2
fault STOP 8 2 gathered "${axis[@]}" --training.local_batch_size 2
fault KILL 8 7 ring-sockets "${axis[@]}" --training.local_batch_size 2 --parallelism.context_parallel_rotate_method ring --comm.shared_memory false
fault STOP 8 4 ring-sockets "${axis[@]}" --training.local_batch_size 2 --parallelism.context_parallel_rotate_method ring --comm.shared_memory false
