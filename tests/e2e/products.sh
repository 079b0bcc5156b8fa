#!/usr/bin/env bash
# Which library computes products: measured once, kept for the next run, which has the same bits; damage is told of; a run that goes on
# with other libraries says so; what is not installed is refused.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export XDG_CACHE_HOME=$dir/cache
run() { # $1: name, steps, ranks; then flags
  local name=$1 steps=$2 ranks=$3
  shift 3
  $sfsdp launch -n "$ranks" --log-rank 0 -- train --job.config_file configs/llama3_debug.toml --training.steps "$steps" --training.seq_len 32 \
    --model.args.n_layers 2 --training.dataset_max_bytes 200000 --training.mixed_precision_param float32 --training.local_batch_size 2 \
    --job.dump_folder "$dir/$name" "$@" >"$dir/$name.log" 2>&1 || { cat "$dir/$name.log"; return 1; }
}
says() { grep -q -- "$2" "$dir/$1.log" || { cat "$dir/$1.log"; echo "expected in the log of $1: $2"; exit 1; }; }
hides() { if grep -q -- "$2" "$1"; then cat "$1"; echo "not expected in $1: $2"; exit 1; fi; }
losses() { python3 -c 'import json, sys; print([json.loads(line).get("loss") for line in open(sys.argv[1])][1:])' "$dir/$1/metrics.jsonl"; }

if ! run onednn 1 1 --exec.products onednn >/dev/null; then
  says onednn "LibTorch offers no product of oneDNN on this processor"
  [[ $(ldconfig -p 2>/dev/null) == *'libopenblas.so.0 '* ]] || { echo "nothing to choose: LibTorch's product alone"; exit 77; }
fi

run first 3 2 --checkpoint.enable true --checkpoint.interval 2
says first "Products of [0-9]* shapes: .* measured in .* kept in $dir/cache/sfsdp/products-"
run second 3 2
says second "as measured before"
[[ $(losses first) == "$(losses second)" ]]
for file in "$dir"/cache/sfsdp/products-*; do echo 'sfsdp products 1' >"$file"; done
run damaged 1 2
says damaged "it is damaged; they are measured again"
XDG_CACHE_HOME=/dev/null run unkept 1 2
says unkept "their times cannot be kept"
run exact 1 2 --exec.products aten --exec.attention aten --exec.rows aten
hides "$dir/exact.log" "Products of"
run steady 1 2 --debug.deterministic true
hides "$dir/steady.log" "Products of"
run half 1 2 --training.mixed_precision_param bfloat16
hides "$dir/half.log" "Products of"
# The checkpoint names a kernel for each shape.
grep -q '"products f32:' "$dir"/first/checkpoint/step-*/*.json
rm -r "$dir/first/checkpoint/step-3"
run first 3 2 --checkpoint.enable true --checkpoint.interval 2 --exec.products aten
says first "other kernels compute than before, so last bits will differ: products"
# Plans that are made without training name none, and say so.
$sfsdp plan --job.config_file configs/llama3_debug.toml --world 2 --training.mixed_precision_param float32 --out "$dir/plan" >"$dir/plan.log" 2>&1
says plan "products name no library"
hides "$dir/plan" product_kernel=
if [[ $(ldconfig -p 2>/dev/null) == *'libopenblas.so.0 '* ]]; then
  run openblas 1 2 --exec.products openblas
else
  if run openblas 1 1 --exec.products openblas >/dev/null; then exit 1; fi
  says openblas "this machine has no libopenblas.so.0"
fi
