#!/usr/bin/env bash
# Adapters are trained by two processes, saved, resumed on one, with and without the frozen weights, begun with, written for PEFT and merged into the weights; what does not fit is told.
# Takes 30 s alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
sfsdp=$PWD/build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
run() { "$sfsdp" "$@" >"$dir/log" 2>&1 || fail "sfsdp $*: $(cat "$dir/log")"; }
refused() { # words that the error must have; a command
  local words=$1
  shift
  "$sfsdp" "$@" >"$dir/log" 2>&1 && fail "not refused: $*"
  grep -qF -- "$words" "$dir/log" || fail "expected \"$words\": $(cat "$dir/log")"
}
losses() { # run
  sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl" | cut -c1-8
}
lora=(--lora.target "*.q_proj|*.down_proj" --lora.rank 4 --lora.alpha 8)
flags=(--model.name exported --model.path "$PWD/tests/fixtures/exported/decoder.pt2" --model.inputs "input_ids=tokens,labels=tokens"
  --training.dataset tokens --training.dataset_path "$PWD/tests/fixtures/tokens.bin" --training.seq_len 16 --optimizer.lr 1e-2
  --training.local_batch_size 2 --training.mixed_precision_param float32 --job.dump_folder "$dir/run" --metrics.log_freq 1)

run launch -n 2 -- train "${flags[@]}" "${lora[@]}" --training.steps 6 --job.dump_folder "$dir/whole"
run launch -n 2 -- train "${flags[@]}" "${lora[@]}" --training.steps 4 --lr_scheduler.total_steps 6 --checkpoint.enable --checkpoint.interval 4 \
  --checkpoint.no_last_save_model_only
refused "lora.alpha" train "${flags[@]}" "${lora[@]}" --lora.alpha 9 --training.steps 6 --training.global_batch_size 4 --checkpoint.enable
run train "${flags[@]}" "${lora[@]}" --training.steps 6 --training.global_batch_size 4 --checkpoint.enable
diff <(losses "$dir/whole") <(losses "$dir/run") || fail "stopped and resumed, the losses differ"
saved=$dir/run/checkpoint/step-6
archive=(--archive tests/fixtures/exported/decoder.pt2)

refused "expected --merge" export "$saved" "$dir/no.pt2" "${archive[@]}"
run export "$saved" "$dir/adapter" --format peft
run export "$saved" "$dir/merged.pt2" "${archive[@]}" --merge
run export "$saved" "$dir/merged.safetensors" "${archive[@]}" --merge --format safetensors
refused "is there already" export "$saved" "$dir/adapter" --format peft
# The merged model, trained on with a learning rate of 0, has the loss that the adapters have there.
run train "${flags[@]}" --model.path "$dir/merged.pt2" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/merged"
run train "${flags[@]}" "${lora[@]}" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/beside" --checkpoint.enable \
  --checkpoint.initial_load_path "$saved" --checkpoint.initial_load_model_only
[[ $(losses "$dir/merged") == "$(losses "$dir/beside")" ]] || fail "merged: $(losses "$dir/merged"), beside: $(losses "$dir/beside")"
[[ $(losses "$dir/merged") != "$(losses "$dir/whole" | head -1)" ]] || fail "merged: the adapters changed nothing"

# Without the frozen weights: the same losses, on another number of ranks too; a base that has changed is refused by name.
lean=(--checkpoint.enable --checkpoint.frozen none --job.dump_folder "$dir/lean")
run launch -n 2 -- train "${flags[@]}" "${lora[@]}" "${lean[@]}" --training.steps 4 --lr_scheduler.total_steps 6 --checkpoint.interval 4 \
  --checkpoint.no_last_save_model_only
cp -r "$dir/lean" "$dir/changed"
refused "merged.pt2\" are not what they were" train "${flags[@]}" "${lora[@]}" "${lean[@]}" --job.dump_folder "$dir/changed" --model.path "$dir/merged.pt2" \
  --training.steps 6 --training.global_batch_size 4
run train "${flags[@]}" "${lora[@]}" "${lean[@]}" --training.steps 6 --training.global_batch_size 4
diff <(losses "$dir/whole") <(losses "$dir/lean") || fail "stopped and resumed without the frozen weights, the losses differ"
small=$dir/lean/checkpoint/step-6
bytes_of() { du -b --apparent-size -s "$1" | cut -f1; }
echo "one checkpoint: $(bytes_of "$dir/run/checkpoint/step-4") bytes, $(bytes_of "$dir/lean/checkpoint/step-4") without the frozen weights"
run checkpoint ls "$dir/lean/checkpoint"
grep -q "without .* frozen tensors of the archive" "$dir/log" || fail "$(cat "$dir/log")"
run checkpoint verify "$small"
grep -q "whose digests those of the archive" "$dir/log" || fail "$(cat "$dir/log")"
run checkpoint diff "$saved" "$small"
run checkpoint convert "$small" "$dir/converted" --ranks 1
run export "$small" "$dir/small-adapter" --format peft
cmp "$dir/adapter/adapter_model.safetensors" "$dir/small-adapter/adapter_model.safetensors" || fail "the adapters of both checkpoints differ"
run export "$small" "$dir/small-merged.safetensors" "${archive[@]}" --merge --format safetensors
cmp "$dir/merged.safetensors" "$dir/small-merged.safetensors" || fail "merged, both checkpoints differ"
refused "are not what they were" export "$small" "$dir/no.safetensors" --archive "$dir/merged.pt2" --merge --format safetensors
refused "checkpoint.frozen = all" train "${flags[@]}" "${lora[@]}" "${lean[@]}" --checkpoint.create_seed_checkpoint

# A run that begins with the adapter that was exported has the loss of one that begins with the checkpoint, in all digits.
run train "${flags[@]}" --lora.adapter "$dir/adapter" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/begun"
exact() { sed -n 's/.*"loss": \([0-9.e-]*\),.*/\1/p' "$1/metrics.jsonl"; }
[[ $(exact "$dir/begun") == "$(exact "$dir/beside")" ]] || fail "begun with the adapter: $(exact "$dir/begun"), beside: $(exact "$dir/beside")"
refused "lora.rank = 5, but" train "${flags[@]}" --lora.adapter "$dir/adapter" --lora.rank 5 --training.steps 1
refused "lora.target with lora.adapter" train "${flags[@]}" "${lora[@]}" --lora.adapter "$dir/adapter" --training.steps 1

# A Llama of ours: adapters have Hugging Face's names, and rows of B its order.
llama=(--job.config_file configs/llama3_debug.toml --training.seq_len 32 --training.local_batch_size 1 --training.dataset_max_bytes 100000
  --model.args.n_layers 1 --model.args.dim 64 --training.steps 2 --job.dump_folder "$dir/llama" --checkpoint.enable --checkpoint.interval 2)
run train "${llama[@]}" --lora.target "*.wq|*.w2" --lora.rank 4
# Its weights are initial values, which a run alone draws: adapters are exported, weights are not.
run train "${llama[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --checkpoint.frozen none --job.dump_folder "$dir/llama-lean"
refused "expected a checkpoint that holds them, as a run alone draws them" export "$dir/llama-lean/checkpoint/step-2" "$dir/no.pt2" --merge
run checkpoint verify "$dir/llama-lean/checkpoint/step-2"
refused "expected --hf-assets" export "$dir/llama/checkpoint/step-2" "$dir/llama-adapter" --format peft
# Begun with what is written there, it goes on as from the checkpoint, in all digits.
run train "${llama[@]}" --job.dump_folder "$dir/llama-hf" --checkpoint.last_save_in_hf --model.hf_assets_path=
run export "$dir/llama/checkpoint/step-2" "$dir/llama-adapter" --format peft --hf-assets "$dir/llama-hf/checkpoint/hf-step-2"
run train "${llama[@]}" --lora.adapter "$dir/llama-adapter" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/llama-begun"
run train "${llama[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/llama-beside" \
  --checkpoint.initial_load_path "$dir/llama/checkpoint/step-2"
[[ $(exact "$dir/llama-begun") == "$(exact "$dir/llama-beside")" ]] || fail "begun: $(exact "$dir/llama-begun"), beside: $(exact "$dir/llama-beside")"
refused "lora.target = *.wqq matches no module" train "${llama[@]}" --lora.target "*.wqq"
refused "matches tok_embeddings, whose weight is read by aten.embedding" train "${llama[@]}" --lora.target tok_embeddings
refused "matches tok_embeddings, whose weight is read by aten.embedding" train "${llama[@]}" --model.args.tied true --lora.target tok_embeddings
refused "matches table, whose weight is tied to out.weight" train "${flags[@]}" --model.path tests/fixtures/exported/shared.pt2 \
  --model.inputs ids=tokens,target=tokens --lora.target table
# From a Hugging Face folder: its weights are read there again, by a run and by tools; the adapter goes out and in under its names.
hf=$dir/base/checkpoint/hf-step-2
run train "${llama[@]}" --job.dump_folder "$dir/base" --checkpoint.last_save_in_hf --model.hf_assets_path=
from_hf=(--model.name hf --model.hf_assets_path "$hf" --checkpoint.initial_load_in_hf --checkpoint.frozen none --checkpoint.enable
  --checkpoint.interval 2 --checkpoint.no_last_save_model_only --training.seq_len 32 --training.local_batch_size 1 --training.dataset_max_bytes 100000
  --training.steps 2 --lr_scheduler.total_steps 6 --metrics.log_freq 1 --optimizer.lr 1e-2)
run train "${from_hf[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --training.steps 4 --job.dump_folder "$dir/hf-whole"
run train "${from_hf[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --job.dump_folder "$dir/hf"
run train "${from_hf[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --training.steps 4 --job.dump_folder "$dir/hf"
diff <(exact "$dir/hf-whole") <(exact "$dir/hf") || fail "stopped and resumed from a Hugging Face folder, the losses differ"
run checkpoint verify "$dir/hf/checkpoint/step-4"
grep -q "whose digests those of the Hugging Face folder" "$dir/log" || fail "$(cat "$dir/log")"
run checkpoint convert "$dir/hf/checkpoint/step-4" "$dir/hf-merged" --hf-assets "$hf" --merge
run export "$dir/hf/checkpoint/step-4" "$dir/hf-adapter" --format peft --hf-assets "$hf"
run train "${from_hf[@]}" --lora.adapter "$dir/hf-adapter" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/hf-begun"
run train "${from_hf[@]}" --lora.target "*.wq|*.w2" --lora.rank 4 --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/hf-beside" \
  --checkpoint.no_initial_load_in_hf --checkpoint.initial_load_path "$dir/hf/checkpoint/step-4"
[[ $(exact "$dir/hf-begun") == "$(exact "$dir/hf-beside")" ]] || fail "begun: $(exact "$dir/hf-begun"), beside: $(exact "$dir/hf-beside")"
[[ $(exact "$dir/hf-begun") != "$(exact "$dir/hf" | head -1)" ]] || fail "the adapters changed nothing"
mv "$hf" "$hf-away"
refused "leaves out frozen weights, which are of the Hugging Face folder" checkpoint convert "$dir/hf/checkpoint/step-4" "$dir/no" --hf-assets "$hf-away" --merge
# torch::nn::Linear multiplies by a transposed weight itself.
gpt=(--model.name gpt --model.flavor "" --model.args.dim 32 --model.args.n_layers 1 --model.args.n_heads 2 --model.args.vocab_size 2048
  --model.args.max_positions 32 --training.seq_len 32 --training.local_batch_size 1 --training.dataset_max_bytes 100000 --optimizer.lr 1e-2
  --training.mixed_precision_param float32 --checkpoint.enable --checkpoint.interval 3)
run train "${gpt[@]}" --training.steps 3 --job.dump_folder "$dir/gpt" --lora.target "*.c_attn|*.c_proj" --lora.rank 2 --metrics.log_freq 1
[[ $(losses "$dir/gpt" | sort -u | wc -l) == 3 ]] || fail "gpt: $(losses "$dir/gpt")"
run simulate --config configs/llama3_8b.toml --lora.target "*.wq|*.wk|*.wv|*.wo" --machine dgx_h100 --world 8 --json
lora_bytes=$(sed -n 's/.*"state_bytes": \([0-9]*\).*/\1/p' "$dir/log")
grep -q '"step_seconds"' "$dir/log" || fail "$(cat "$dir/log")"
echo "8B with adapters: state ${lora_bytes:-?} bytes"

for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import torch' 2>/dev/null && python=$(realpath -s "$candidate") && break
done
[[ -n ${python:-} ]] || { echo "SKIP: torch is not here; ./setup.sh --tests installs it into .venv"; exit 77; }
"$python" - "$dir" <<'PY' || fail "what was written is not what Python reads"
import json, sys
import torch
folder = sys.argv[1]


def read(path):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    return {name: torch.frombuffer(bytearray(data[8 + size + row["data_offsets"][0] : 8 + size + row["data_offsets"][1]]),
                                   dtype=torch.float32).view(row["shape"])
            for name, row in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}


adapter, merged = read(folder + "/adapter/adapter_model.safetensors"), read(folder + "/merged.safetensors")
config = json.load(open(folder + "/adapter/adapter_config.json"))
assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8), config
targets = [f"layers.{i}.{name}" for i in range(2) for name in ("down_proj", "q_proj")]
assert config["target_modules"] == targets, config["target_modules"]
base = torch.export.load("tests/fixtures/exported/decoder.pt2").state_dict
written = torch.export.load(folder + "/merged.pt2").state_dict
for name, value in base.items():
    expected = value
    path = name.removesuffix(".weight")
    if path in targets:
        a, b = (adapter[f"base_model.model.{path}.lora_{x}.weight"] for x in "AB")
        assert b.abs().max() > 1e-3, path
        expected = value + (b @ a) * (8 / 4)
    assert (merged[name] - expected).abs().max() <= 1e-6, name
    assert torch.equal(merged[name], written[name]), name
PY
