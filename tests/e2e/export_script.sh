#!/usr/bin/env bash
# python/sfsdp_export.py: an architecture of transformers by name and by folder becomes an archive that trains here; batch and length may
# vary; what torch.export cannot do is told in words, with the line of the model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
sfsdp=$PWD/build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import torch, transformers' 2>/dev/null && python=$(realpath -s "$candidate") && break
done
[[ -n ${python:-} ]] || { echo "SKIP: transformers and torch are not here; ./setup.sh --tests installs them into .venv"; exit 77; }

# Experts are a custom op of transformers, which has a replacement.
"$python" python/sfsdp_export.py MixtralForCausalLM --batch 3 --seq 16 -o "$dir/named.pt2" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
grep -q "MixtralForCausalLM, .* parameters, inputs input_ids, labels" "$dir/log" || fail "$(cat "$dir/log")"
"$python" python/sfsdp_export.py NoSuchModel -o "$dir/none.pt2" >"$dir/log" 2>&1 && fail "NoSuchModel was exported"
grep -q "error: NoSuchModel is no folder, no config.json and no architecture" "$dir/log" || fail "$(cat "$dir/log")"
for name in "ViTForImageClassification reads pixel_values" "WhisperForConditionalGeneration reads input_features"; do
  "$python" python/sfsdp_export.py "${name%% *}" -o "$dir/none.pt2" >"$dir/log" 2>&1 && fail "$name was exported"
  grep -q "^error: $name, and this command makes examples of token ids alone" "$dir/log" || fail "$(cat "$dir/log")"
  grep -q "Traceback" "$dir/log" && fail "$(cat "$dir/log")"
done
[[ ! -e $dir/none.pt2 ]] || fail "a failed export left a file"

cat >"$dir/check.py" <<'PY'
import os, sys
import sfsdp_export, torch, transformers
from safetensors.torch import save_file
from torch.utils.checkpoint import checkpoint

folder = sys.argv[1]
config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder + "/hf")
model = sfsdp_export.transformers_model(folder + "/hf", torch.bfloat16)
assert next(model.parameters()).dtype == torch.bfloat16 and model.training and not model.config.use_cache
assert sfsdp_export.export(model, sfsdp_export.token_example(model, 2, 8), folder + "/folder.pt2") == []


class Own(torch.nn.Module):
    def __init__(self, branch=False, fixed=False):
        super().__init__()
        self.up, self.branch, self.fixed = torch.nn.Linear(4, 4), branch, fixed

    def forward(self, x, y):
        h = self.up(x)
        if self.branch and h.sum() > 0:
            h = -h
        if self.fixed:
            h = h.reshape(3, 2, 2).flatten(1)
        return dict(loss=(h - y).square().mean())


x = torch.randn(3, 4)
example = dict(x=x, y=torch.randn(3, 4))
assert sfsdp_export.export(Own(), example, folder + "/own.pt2") == []
notes = sfsdp_export.export(Own(fixed=True), example, folder + "/fixed.pt2")
assert notes == ["batch of x is baked in: 3", "batch of y is baked in: 3"], notes
assert sfsdp_export.export(Own(), example, folder + "/own.pt2", "none") == notes


def told(words, *arguments):
    try:
        sfsdp_export.export(*arguments, folder + "/never.pt2")
    except sfsdp_export.ExportError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"exported: {words}")




class Blocks(torch.nn.Module):  # the first is checkpointed, the second is not
    def __init__(self, reentrant):
        super().__init__()
        self.layers, self.reentrant = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)) for _ in range(2)), reentrant

    def forward(self, x, y):
        x = checkpoint(self.layers[0], x, use_reentrant=self.reentrant)
        return dict(loss=(self.layers[1](x) - y).square().mean())


assert sfsdp_export.export(Blocks(True), example, folder + "/blocks.pt2") == []
torch.export.save(torch.export.export(Blocks(True).train(), (), example, strict=False), folder + "/reentrant.pt2")
model = transformers.LlamaForCausalLM(config)
model.gradient_checkpointing_enable()
assert sfsdp_export.export(sfsdp_export.prepare(model), sfsdp_export.token_example(model, 2, 8), folder + "/checkpointed.pt2") == []
ids = torch.randint(64, (2, 12))
packed = dict(input_ids=ids, labels=ids.clone(), position_ids=torch.tensor([[*range(7), *range(5)], [*range(3), *range(9)]]))
documents = sfsdp_export.prepare(transformers.LlamaForCausalLM(config))
expected = documents(**packed).loss.item()
assert sfsdp_export.export(documents, packed, folder + "/packed.pt2") == []
assert torch.export.load(folder + "/packed.pt2").module()(**packed).loss.item() == expected
# A function of the user's in place of the mask of sdpa is what the export has.
masks, usual = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, transformers.masking_utils.sdpa_mask
masks["sdpa"] = lambda *args, **kwargs: usual(*args, **kwargs).triu(-2)
assert documents(**packed).loss.item() != expected
expected = documents(**packed).loss.item()
assert sfsdp_export.export(documents, packed, folder + "/own_mask.pt2") == []
assert torch.export.load(folder + "/own_mask.pt2").module()(**packed).loss.item() == expected
del masks["sdpa"]
assert all(layer._gradient_checkpointing_func.func is checkpoint for layer in model.model.layers)  # put back

told(["a branch or a shape depends on values", "check.py:", "if self.branch and h.sum() > 0:", "change: torch.where"], Own(branch=True), example)
told(["x and y of the example are one tensor", "y.clone()"], Own(), dict(x=x, y=x))
told(["the example's names are not those of forward"], Own(), dict(x=x, z=x.clone()))
told(["the example has no tensors"], Own(), {})


class Counted(Own):  # a region of no_grad that gives nothing: torch.export.save fails
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, y):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0))
        return super().forward(x, y)


told(["a region of torch.no_grad or autocast gives nothing", "change: detach()"], Counted(), example)
assert not os.path.exists(folder + "/never.pt2")
load = torch.export.load
torch.export.load = lambda path: (_ for _ in ()).throw(KeyError("from"))
before = open(folder + "/own.pt2", "rb").read()
for name, there in (("none.pt2", False), ("own.pt2", True)):
    try:
        sfsdp_export.export(Own(), example, folder + "/" + name)
        raise AssertionError("written, though it cannot be read")
    except sfsdp_export.ExportError as error:
        assert "cannot read what its torch.export.save wrote" in str(error) and "KeyError" in str(error), error
    assert os.path.exists(folder + "/" + name) == there
torch.export.load = load
assert open(folder + "/own.pt2", "rb").read() == before
assert not [name for name in os.listdir(folder) if name.startswith(".sfsdp_export")]


class Sizes(torch.nn.Module):  # y has two columns for each of x
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, y):
        return dict(loss=((x * self.w).square().mean() + (y * self.w).square().mean()))


n = torch.export.Dim("n", min=2, max=64)
x8 = torch.randn(6, 8)
sfsdp_export.export(Sizes(), dict(x=x8[:, :4].contiguous(), y=x8), folder + "/double.pt2", dict(x={0: None, 1: n}, y={0: None, 1: 2 * n}))
sfsdp_export.export(Sizes(), dict(x=x8, y=x8.clone()), folder + "/even.pt2", dict(x={1: 2 * n}, y={1: 2 * n}))
for columns in (7, 8):
    save_file(dict(x=x8[:, :4].contiguous(), y=x8[:, :columns].contiguous()), f"{folder}/double_{columns}.safetensors")
    save_file(dict(x=x8[:, :columns].contiguous(), y=x8[:, :columns].clone()), f"{folder}/even_{columns}.safetensors")


class Fourier(Own):
    def forward(self, x, y):
        return dict(loss=(torch.fft.fft(self.up(x)).abs() - y).square().mean())


class Turned(Own):  # complex numbers as rotary embeddings have them
    def forward(self, x, y):
        pairs = torch.view_as_complex(self.up(x).unflatten(-1, (2, 2)))
        turned = pairs * torch.polar(torch.ones(2), torch.arange(2.0))
        return dict(loss=(torch.view_as_real(turned).flatten(1) - y).square().mean())


class Half(Own):  # one tensor under two names, trained under one of them
    def __init__(self, first):
        super().__init__()
        kept = torch.nn.Linear(4, 4)
        self.a, self.b = (kept, torch.nn.Linear(4, 4)) if first else (torch.nn.Linear(4, 4), kept)
        other = self.b if first else self.a
        other.weight = torch.nn.Parameter(kept.weight.data, requires_grad=False)

    def forward(self, x, y):
        return super().forward(self.b(self.a(x)), y)


for first in (True, False):
    sfsdp_export.export(Half(first), example, f"{folder}/half_{first}.pt2")
sfsdp_export.export(Fourier(), example, folder + "/fourier.pt2")
sfsdp_export.export(Turned(), example, folder + "/turned.pt2")


class Hand(torch.nn.Module):  # adapters that the model has by itself
    def __init__(self):
        super().__init__()
        self.base, self.lora_A, self.lora_B = (torch.nn.Linear(*sizes, bias=False) for sizes in ((4, 4), (4, 2), (2, 4)))

    def forward(self, x, y):
        return dict(loss=(self.base(x) + self.lora_B(self.lora_A(x)) - y).square().mean())


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = Hand()

    def forward(self, x, y):
        return self.q(x, y)


hand = Block()
assert sfsdp_export.export(hand, example, folder + "/hand.pt2") == []
save_file(example, folder + "/hand.safetensors")
with open(folder + "/hand.loss", "w") as file:
    file.write(f"{hand(**example)['loss'].item():.6f}")
PY
PYTHONPATH=python "$python" "$dir/check.py" "$dir" 2>"$dir/log" || fail "$(tail -5 "$dir/log")"

flags=(--model.name exported --model.inputs "input_ids=tokens,labels=tokens" --training.dataset tokens --training.dataset_path tests/fixtures/tokens.bin
  --training.steps 2 --metrics.log_freq 1)
# Another batch and another length than the example's.
"$sfsdp" launch -n 2 --log-rank 0 -- train "${flags[@]}" --model.path "$dir/named.pt2" --training.mixed_precision_param float32 \
  --training.seq_len 24 --training.local_batch_size 2 --job.dump_folder "$dir/named" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" train "${flags[@]}" --model.path "$dir/folder.pt2" --training.seq_len 12 --training.local_batch_size 3 --job.dump_folder "$dir/folder" \
  >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
[[ $(cat "$dir"/{named,folder}/metrics.jsonl | grep -c '"loss"') == 4 ]] || fail "$(cat "$dir"/*/metrics.jsonl)"

# What torch.utils.checkpoint is given is computed again, unless the config says otherwise; torch's own export of
# use_reentrant=True has no gradients, and is refused.
blocks=(plan --world 1 --model.name exported --training.mixed_precision_param float32 --training.dataset tensors --training.dataset_path "$dir/batches" --training.local_batch_size 3)
mkdir "$dir/batches"
"$python" -c "import sys, torch; from safetensors.torch import save_file; save_file(dict(x=torch.randn(6, 4), y=torch.randn(6, 4)), sys.argv[1])" \
  "$dir/batches/0.safetensors"
again() { "$sfsdp" "$@" --out "$dir/plan" >/dev/null && grep '\.again = ' "$dir/plan"; }
again "${blocks[@]}" --model.path "$dir/blocks.pt2" >"$dir/log" || fail "no op of a checkpointed block is computed again"
grep -q '@layers.1' "$dir/log" && fail "layers.1 is not checkpointed: $(cat "$dir/log")"
again "${blocks[@]}" --model.path "$dir/blocks.pt2" --activation_checkpoint.mode none && fail "mode none computes again"
"$sfsdp" "${blocks[@]}" --model.path "$dir/reentrant.pt2" >"$dir/log" 2>&1 && fail "parameters without gradients are trained"
grep -q "reads 8 parameters where gradients are off: layers.0.0.weight, layers.0.0.bias, layers.0.2.weight, …" "$dir/log" || fail "$(cat "$dir/log")"
again plan --world 1 "${flags[@]}" --training.mixed_precision_param float32 --model.path "$dir/checkpointed.pt2" --training.seq_len 12 >/dev/null ||
  fail "gradient_checkpointing_enable is not seen"

# Parameters that are called as adapters are, in a model that has them by itself: loaded, trained, exported as any other.
hand=(--model.name exported --model.path "$dir/hand.pt2" --training.mixed_precision_param float32 --training.dataset tensors --training.dataset_path
  "$dir/hand.safetensors" --training.local_batch_size 3 --training.steps 1 --optimizer.lr 0 --metrics.log_freq 1 --checkpoint.enable
  --checkpoint.no_last_save_model_only)
"$sfsdp" train "${hand[@]}" --job.dump_folder "$dir/hand" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
loss=$(sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$dir/hand/metrics.jsonl" | head -1)
awk -v a="$loss" -v b="$(cat "$dir/hand.loss")" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-10) }' || fail "loss $loss, in Python $(cat "$dir/hand.loss")"
"$sfsdp" export "$dir/hand/checkpoint/step-1" "$dir/hand.out.safetensors" --archive "$dir/hand.pt2" --format safetensors >"$dir/log" 2>&1 ||
  fail "$(cat "$dir/log")"
"$sfsdp" export "$dir/hand/checkpoint/step-1" "$dir/hand.peft" --format peft >"$dir/log" 2>&1 && fail "the model's own were written as adapters"
"$sfsdp" train "${hand[@]}" --job.dump_folder "$dir/hand" --training.steps 2 >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
[[ $(sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$dir/hand/metrics.jsonl" | cut -c1-7 | uniq -c | tr -s ' ') == " 2 ${loss:0:7}" ]] || fail "resumed with others: $(cat "$dir/hand/metrics.jsonl")"
"$sfsdp" train "${hand[@]}" --job.dump_folder "$dir/never" --lora.target "*.base" >"$dir/log" 2>&1 && fail "adapters beside adapters"
grep -q "the model has q.lora_A.weight of its own" "$dir/log" || fail "$(cat "$dir/log")"

# Sizes that are computed of others are checked, and printed as in Python.
sizes() { # archive, columns
  "$sfsdp" train --model.name exported --model.path "$dir/$1.pt2" --training.mixed_precision_param float32 --training.dataset tensors \
    --training.dataset_path "$dir/$1_$2.safetensors" --training.local_batch_size 6 --training.steps 1 --job.dump_folder "$dir/sizes" >"$dir/log" 2>&1
}
sizes double 8 || fail "$(cat "$dir/log")"
sizes even 8 || fail "$(cat "$dir/log")"
sizes double 7 && fail "trained with 7 for 2 * 4 columns"
grep -q "expected 8 in dimension 1: the graph has the size 2\*s[0-9]* there, and s[0-9]* = 4" "$dir/log" || fail "$(cat "$dir/log")"
sizes even 7 && fail "trained with 7 columns, which is no 2 * n"
grep -q "expected 2\*s[0-9]* in dimension 1, for some whole s[0-9]*" "$dir/log" || fail "$(cat "$dir/log")"
"$sfsdp" inspect --model.path "$dir/double.pt2" | grep -qx "  y  f32\[6, 2\*s[0-9]* of 4 to 128\]" || fail "$("$sfsdp" inspect --model.path "$dir/double.pt2")"

# A tensor is trained or it is not, whichever name comes first.
for half in half_True:b half_False:a; do
  "$sfsdp" train "${hand[@]}" --model.path "$dir/${half%:*}.pt2" --job.dump_folder "$dir/never" >"$dir/log" 2>&1 && fail "trained half of a tensor"
  grep -q "a.weight and b.weight are one tensor, and ${half#*:}.weight has requires_grad = False" "$dir/log" || fail "$(cat "$dir/log")"
done

# inspect knows what cannot be captured.
"$sfsdp" inspect --model.path "$dir/fourier.pt2" >"$dir/log" 2>&1 && fail "a Fourier transform can be trained"
grep -q "^Not trained: torch.ops.aten.fft_fft.default .*has no shape function" "$dir/log" || fail "$(cat "$dir/log")"
"$sfsdp" inspect --model.path "$dir/turned.pt2" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"

# A model that is not told where documents begin would attend over their borders.
"$sfsdp" plan --world 1 --model.name exported --model.path "$dir/packed.pt2" --model.inputs "input_ids=tokens,labels=labels,position_ids=tokens" \
  --training.document_mask --training.dataset tokens --training.dataset_path none --training.mixed_precision_param float32 --training.seq_len 12 \
  --training.local_batch_size 2 --out "$dir/plan" >"$dir/log" 2>&1 && fail "documents are kept apart by nothing"
grep -q "document_mask = true, but no input of .*/packed.pt2 is given positions" "$dir/log" || fail "$(cat "$dir/log")"

# Documents that position_ids tell are documents of the attention op: no value of 12 × 12 numbers is left.
"$sfsdp" plan --world 1 --model.name exported --model.path "$dir/packed.pt2" --model.inputs "input_ids=tokens,labels=labels,position_ids=positions" \
  --training.document_mask --training.dataset tokens --training.dataset_path none --training.mixed_precision_param float32 --training.seq_len 12 \
  --training.local_batch_size 2 --out "$dir/plan" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
[[ $(grep -c 'sdpa.* documents=true' "$dir/plan") == 2 ]] || fail "documents are not found: $(grep sdpa "$dir/plan")"
[[ $(grep -c '12, 12\]' "$dir/plan") == 0 ]] || fail "a mask is left: $(grep '12, 12\]' "$dir/plan")"
# The graph takes the first label of each row for no target.
"$sfsdp" train --model.name exported --model.path "$dir/named.pt2" --model.inputs "input_ids=tokens,labels=labels" --training.loss_mask --training.dataset tokens \
  --training.dataset_path tests/fixtures/tokens.bin --training.mixed_precision_param float32 --training.seq_len 12 --training.local_batch_size 2 \
  --training.steps 1 --metrics.log_freq 1 --job.dump_folder "$dir/counted" --validation.enable --validation.dataset tokens \
  --validation.dataset_path tests/fixtures/tokens.bin --validation.seq_len 10 --validation.local_batch_size 2 --validation.steps 3 --validation.freq 1 \
  >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
grep -q '"targets": 22[,}]' "$dir/counted/metrics.jsonl" || fail "targets of two rows of 12: $(cat "$dir/counted/metrics.jsonl")"
