#!/usr/bin/env bash
# debug.nan = dump on two ranks: weights that overflow in one matrix of layer 1, for one token alone. The message names rank,
# micro-batch, op and module; what is dumped is the batch and the weights.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# Component 0 of the hidden state is that of the token's embedding alone, and only token 255 has one.
python3 - "$dir" <<'PY'
import json, os, random, struct, sys
random.seed(1)
folder, dim, hidden, vocab, layers = sys.argv[1], 16, 32, 256, 3
os.mkdir(folder + "/hf")
json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=dim, intermediate_size=hidden,
               num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=2, vocab_size=vocab, hidden_act="silu",
               max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
               attention_bias=False, mlp_bias=False, tie_word_embeddings=False, torch_dtype="float32"),
          open(folder + "/hf/config.json", "w"))
tensors = {}
def add(name, rows, columns=None, change=lambda m: None):
    m = [[random.gauss(0, 0.1) for _ in range(columns or 1)] for _ in range(rows)]
    if columns is None: m = [[1.0] for _ in m]
    change(m)
    tensors[name] = ([rows] if columns is None else [rows, columns], [x for row in m for x in row])
def no_first_column(m):
    for row in m: row[0] = 0.0
    m[255][0] = 1.0
def no_first_row(m): m[0] = [0.0] * len(m[0])
def overflow(m): m[0][0] = 3e38
add("model.embed_tokens.weight", vocab, dim, no_first_column)
for i in range(layers):
    p = f"model.layers.{i}."
    for name in "qkv": add(f"{p}self_attn.{name}_proj.weight", dim, dim)
    add(p + "self_attn.o_proj.weight", dim, dim, no_first_row)
    add(p + "mlp.gate_proj.weight", hidden, dim)
    add(p + "mlp.up_proj.weight", hidden, dim, overflow if i == 1 else lambda m: None)
    add(p + "mlp.down_proj.weight", dim, hidden, no_first_row)
    add(p + "input_layernorm.weight", dim)
    add(p + "post_attention_layernorm.weight", dim)
add("model.norm.weight", dim)
add("lm_head.weight", vocab, dim)
header, body = {}, b""
for name, (shape, values) in tensors.items():
    data = struct.pack(f"<{len(values)}f", *values)
    header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(body), len(body) + len(data)])
    body += data
text = json.dumps(header).encode()
open(folder + "/hf/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
ids = [random.randrange(255) for _ in range(8 * 24 + 1)]
ids[100] = 255
open(folder + "/tokens.bin", "wb").write(struct.pack(f"<{len(ids)}H", *ids))
PY
train() {
  $sfsdp launch -n 2 --log-rank 0 -- train --model.name hf --model.hf_assets_path "$dir/hf" --checkpoint.initial_load_in_hf \
    --training.dataset tokens --training.dataset_path "$dir/tokens.bin" --training.seq_len 8 --training.local_batch_size 1 \
    --training.global_batch_size 4 --training.steps 20 --training.mixed_precision_param float32 --optimizer.lr 0 \
    --optimizer.no_decay "*norm*" --lr_scheduler.warmup_steps 0 --metrics.log_freq 1 "$@"
}
if train --debug.nan dump --job.dump_folder "$dir/run" >"$dir/log" 2>&1; then echo "no error"; cat "$dir/log"; exit 1; fi
python3 - "$dir" <<'PY' || { cat "$dir/log"; exit 1; }
import glob, json, re, struct, sys
run, log = sys.argv[1] + "/run", open(sys.argv[1] + "/log").read()
def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__")
    kinds = {"F32": "f", "I64": "q"}
    def values(t):
        begin, end = t["data_offsets"]
        return struct.unpack(f"<{(end - begin) // struct.calcsize('<' + kinds[t['dtype']])}{kinds[t['dtype']]}", body[begin:end])
    return {name: values(t) for name, t in header.items()}
folder, = glob.glob(run + "/nan-step-*")
batches = [load(f"{folder}/rank-{r}/batch.safetensors") for r in (0, 1)]
assert all(sorted(b) == ["0.inputs.0", "0.inputs.1", "1.inputs.0", "1.inputs.1"] for b in batches)
where = [(r, m) for r in (0, 1) for m in (0, 1) if 255 in batches[r][f"{m}.inputs.0"]]
(rank, micro_batch), = where
expected = (f"the first value that is not finite is of rank {rank}: linear at layers.1.feed_forward.w3, in section fwd of "
            f"micro-batch {micro_batch}:")
assert expected in log, expected
assert "its operands are too large" in log
# the state: both ranks' ranges make up each parameter once
found = {}
for r in (0, 1):
    for name, values in load(f"{folder}/rank-{r}/state.safetensors").items():
        part = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name)
        name, begin = (part[1], int(part[2])) if part else (name, 0)
        for i, x in enumerate(values, begin): found.setdefault(name, {})[i] = x
w3 = found["layers.1.feed_forward.w3.weight"]
assert len(w3) == 16 * 32 and w3[0] > 2.9e38, w3[0]
assert len(found["layers.0.attention.wq.weight"]) == 16 * 16
assert json.load(open(f"{folder}/rank-{1 - rank}/report.json"))["state"] == "before the step"
step = int(re.search(r"nan-step-(\d+)$", folder).group(1))
assert f"the loss is nan at step {step}" in log or f"the loss is inf at step {step}" in log
PY
# what is written reproduces the run
$sfsdp train --print-config --config "$(echo "$dir"/run/nan-step-*/config.toml)" | diff - "$(echo "$dir"/run/nan-step-*/config.toml)"
# without the key nothing is written
train --job.dump_folder "$dir/off" >"$dir/log" 2>&1 && { echo "no error"; exit 1; }
if compgen -G "$dir/off/nan-*" >/dev/null; then echo "dumped without debug.nan"; exit 1; fi
