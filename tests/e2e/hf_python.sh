#!/usr/bin/env bash
# Hugging Face's own packages read what sfsdp writes: transformers the exported folder of each architecture, with logits to
# 1e-4; safetensors the files of each rank of a checkpoint; tokenizers gives the same ids and texts on random hard texts.
# What is expected comes from formulas (tests/fixtures), not from files that sfsdp wrote. The vocabularies are small ones,
# trained for the tests: published ones cannot be had on every machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import numpy, safetensors, tokenizers, torch, transformers' 2>/dev/null && python=$candidate && break
done
[[ -n ${python:-} ]] || { echo "SKIP: transformers, safetensors, tokenizers, torch and numpy are not all here; ./setup.sh --tests installs them into .venv"; exit 77; }

# A step at a learning rate of 0 leaves the weights as they were read.
"$python" tests/fixtures/make_fixtures.py --checkpoints "$dir/in"
train() { # case, ranks, name of the exported folder, flags
  local case=$1 ranks=$2 out=$3
  shift 3
  "$sfsdp" launch -n "$ranks" --log-rank 0 -- train --model.name hf --model.hf_assets_path "$dir/in/$case" \
    --checkpoint.initial_load_in_hf --checkpoint.enable --job.dump_folder "$dir/run/$out" --optimizer.lr 0 \
    --training.dataset tokens --training.dataset_path tests/fixtures/tokens.bin --training.seq_len 16 \
    --training.local_batch_size 1 --training.steps 1 --training.mixed_precision_param float32 "$@" >"$dir/log" 2>&1 ||
    fail "$out: $(cat "$dir/log")"
}
mkdir "$dir/out"
for case in llama llama_tied gpt2 gpt2_untied qwen2 qwen3 mistral; do
  train "$case" 2 "$case" --checkpoint.last_save_in_hf
  mv "$dir/run/$case/checkpoint/hf-step-1" "$dir/out/$case"
done
train llama 3 llama-bf16 --checkpoint.last_save_in_hf --checkpoint.export_dtype bfloat16
mv "$dir/run/llama-bf16/checkpoint/hf-step-1" "$dir/out/llama-bf16"
"$python" tests/fixtures/make_fixtures.py --exported "$dir/out" 2>"$dir/err" || fail "$(cat "$dir/err")"

# Mixtures of experts, from their folders, and from folders in float8 with a scale a block, which become the numbers they stand for.
"$python" tests/fixtures/make_mixtures.py --checkpoints "$dir/in"
mkdir -p "$dir/mixtures/float32" "$dir/mixtures/float8"
for case in deepseek_v3 deepseek_v3_plain deepseek_v2 deepseek_v2_lite qwen3_moe qwen3_moe_every_other mixtral; do
  train "$case" 2 "$case" --checkpoint.last_save_in_hf
  mv "$dir/run/$case/checkpoint/hf-step-1" "$dir/mixtures/float32/$case"
done
for case in deepseek_v2 deepseek_v2_lite; do
  for axis in expert tensor; do
    train "$case" 2 "$case-$axis" --checkpoint.last_save_in_hf "--parallelism.${axis}_parallel_degree" 2
    mv "$dir/run/$case-$axis/checkpoint/hf-step-1" "$dir/mixtures/float32/$case-$axis"
  done
done
for case in float8-deepseek_v3 float8-deepseek_v2 float8-qwen3_moe float8-mixtral; do
  train "$case" 2 "$case" --checkpoint.last_save_in_hf --parallelism.expert_parallel_degree 2
  mv "$dir/run/$case/checkpoint/hf-step-1" "$dir/mixtures/float8/$case"
done
"$python" tests/fixtures/make_mixtures.py --exported "$dir/mixtures" 2>"$dir/err" || fail "$(cat "$dir/err")"

# Each rank's file holds whole tensors, or ranges of them as "name[begin:end]"; together they are the weights.
train mistral 3 ranks --checkpoint.no_last_save_model_only
"$python" - "$dir/run/ranks/checkpoint/step-1" "$dir/in/mistral/model.safetensors" <<'PY'
import glob, re, sys
from safetensors.numpy import load_file
expected = load_file(sys.argv[2])
files = sorted(glob.glob(sys.argv[1] + "/rank-*.safetensors"))
assert len(files) == 3, files
ranges = {}
for file in files:
    for key, value in load_file(file).items():
        name, begin = re.fullmatch(r"(.*?)(?:\[(\d+):\d+\])?", key).groups()
        ranges.setdefault(name, []).append((int(begin or 0), value.reshape(-1)))
ours = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
for i in (0, 1):
    for a, b in (("attention.wv", "self_attn.v_proj"), ("attention.wo", "self_attn.o_proj"), ("feed_forward.w1", "mlp.gate_proj"),
                 ("feed_forward.w2", "mlp.down_proj"), ("feed_forward.w3", "mlp.up_proj"),
                 ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
        ours[f"layers.{i}.{a}.weight"] = f"model.layers.{i}.{b}.weight"
for name, theirs in ours.items():
    end, parts = 0, sorted(ranges[name], key=lambda r: r[0])
    for begin, values in parts:
        assert begin == end, (name, begin, end)
        assert (values == expected[theirs].reshape(-1)[begin:begin + values.size]).all(), name
        end += values.size
    assert end == expected[theirs].size, (name, end)
    assert name + ".exp_avg" in ranges and name + ".exp_avg_sq" in ranges, name
assert any(len(parts) > 1 for parts in ranges.values()), "no tensor lies in two ranks"
print(f"safetensors: {len(files)} files, {len(ranges)} tensors, {len(ours)} compared")
PY

"$python" tests/fixtures/tokenizer_reference.py compare 400 12 tests/fixtures/tokenizers/*/tokenizer.json
