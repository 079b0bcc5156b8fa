#!/usr/bin/env bash
# A model that torch.export wrote is trained by two processes, which share samples or products, saved, resumed on one, planned and
# simulated; what is wrong is told. The page docs/exported_models.md does what it says, where transformers is there to make the model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
sfsdp=$PWD/build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
# A fixture whose graph calls another op, sound in all else.
other_op() { # fixture, op, the other, file
  python3 - "tests/fixtures/exported/$1.pt2" "$4" "$2" "$3" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as was, zipfile.ZipFile(sys.argv[2], "w") as out:
    for name in was.namelist():
        data = was.read(name)
        if name.endswith("model.json"): data = data.replace(sys.argv[3].encode(), sys.argv[4].encode())
        out.writestr(name, data)
PY
}
flags=(--model.name exported --model.path "$PWD/tests/fixtures/exported/decoder.pt2" --model.inputs "input_ids=tokens,labels=tokens"
  --training.dataset tokens --training.dataset_path "$PWD/tests/fixtures/tokens.bin" --training.seq_len 16
  --training.local_batch_size 2 --training.mixed_precision_param float32 --job.dump_folder "$dir/run" --metrics.log_freq 1)

# Six steps at once; four, and two more from the checkpoint on another mesh: the same losses.
losses() { # run
  sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl" | cut -c1-8
}
"$sfsdp" launch -n 2 --log-rank 0 -- train "${flags[@]}" --training.steps 6 --job.dump_folder "$dir/whole" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" launch -n 2 --log-rank 0 -- train "${flags[@]}" --training.steps 4 --lr_scheduler.total_steps 6 --checkpoint.enable --checkpoint.interval 4 \
  --checkpoint.no_last_save_model_only >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" train "${flags[@]}" --training.steps 6 --training.global_batch_size 4 --checkpoint.enable >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
[[ $(losses "$dir/whole" | wc -l) == 6 ]] || fail "six steps: $(cat "$dir/whole/metrics.jsonl")"
diff <(losses "$dir/whole") <(losses "$dir/run") || fail "stopped and resumed, the losses differ"

# Two ranks that share its products: the losses of one, and the archive whole again. A rule is needed.
cut=(--parallelism.tensor_parallel_degree 2 --parallelism.tensor_parallel_plan
  "*.q_proj|k_proj|v_proj|gate_proj|up_proj=0,*.o_proj|down_proj=1,embed_tokens|lm_head=0")
"$sfsdp" launch -n 2 --log-rank 0 -- train "${flags[@]}" --training.steps 6 --training.local_batch_size 4 --job.dump_folder "$dir/tp" "${cut[@]}" \
  --checkpoint.enable --checkpoint.interval 6 --checkpoint.no_last_save_model_only >"$dir/log" 2>&1 || fail "over tp: $(cat "$dir/log")"
python3 - "$dir/whole/metrics.jsonl" "$dir/tp/metrics.jsonl" <<'PY'
import json, sys
one, two = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert len(one) == len(two) == 6, (one, two)
for a, b in zip(one, two):
    assert abs(a["loss"] - b["loss"]) <= 1e-6 * a["loss"] and abs(a["grad_norm"] - b["grad_norm"]) <= 5e-6 * a["grad_norm"], (a, b)
PY
"$sfsdp" export "$dir/tp/checkpoint/step-6" "$dir/tp.pt2" --archive tests/fixtures/exported/decoder.pt2 >"$dir/log" 2>&1 || fail "export of tp: $(cat "$dir/log")"
"$sfsdp" launch -n 2 --log-rank 0 -- train "${flags[@]}" --training.steps 1 --parallelism.tensor_parallel_degree 2 >"$dir/log" 2>&1 &&
  fail "trained over tp without a rule"
grep -q "nothing says which" "$dir/log" || fail "over tp without a rule: $(cat "$dir/log")"

# An archive with the same tensors that computes something else is no way to go on.
other_op decoder aten.silu.default aten.tanh.default "$dir/other.pt2"
"$sfsdp" train "${flags[@]}" --model.path "$dir/other.pt2" --training.steps 7 --training.global_batch_size 4 --checkpoint.enable >"$dir/log" 2>&1 &&
  fail "went on with another function"
grep -q "was saved by another model: model.graph = .*, was .*" "$dir/log" || fail "another function: $(cat "$dir/log")"
rm "$dir/other.pt2"

# What was trained goes back into an archive and a state dict; the archive trains on from where the run stood.
"$sfsdp" export "$dir/run/checkpoint/step-6" "$dir/trained.pt2" --archive tests/fixtures/exported/decoder.pt2 >"$dir/log" 2>&1 || fail "export: $(cat "$dir/log")"
"$sfsdp" export "$dir/run/checkpoint/step-6" "$dir/trained.safetensors" --archive tests/fixtures/exported/decoder.pt2 --format safetensors >"$dir/log" 2>&1 ||
  fail "export: $(cat "$dir/log")"
"$sfsdp" export "$dir/run/checkpoint/step-6" "$dir/other.pt2" --archive tests/fixtures/exported/shared.pt2 >"$dir/log" 2>&1 && fail "exported another model"
grep -q "expected a checkpoint of a run of tests/fixtures/exported/shared.pt2" "$dir/log" || fail "another model: $(cat "$dir/log")"
[[ ! -e $dir/other.pt2 && ! -e $dir/other.pt2.tmp ]] || fail "a failed export left a file"
# Two weights that were trained apart do not become one.
python3 - tests/fixtures/exported/decoder.pt2 "$dir/tied.pt2" <<'PY'
import json, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as was, zipfile.ZipFile(sys.argv[2], "w") as out:
    for name in was.namelist():
        data = was.read(name)
        if name.endswith("model_weights_config.json"):
            weights = json.loads(data)
            weights["config"]["layers.1.up_proj.weight"] = weights["config"]["layers.0.up_proj.weight"]
            data = json.dumps(weights).encode()
        out.writestr(name, data)
PY
"$sfsdp" export "$dir/run/checkpoint/step-6" "$dir/other.pt2" --archive "$dir/tied.pt2" >"$dir/log" 2>&1 && fail "exported with other ties"
grep -q "layers.0.up_proj.weight and layers.1.up_proj.weight were trained as two tensors, and are one in" "$dir/log" || fail "ties: $(cat "$dir/log")"
"$sfsdp" train "${flags[@]}" --model.path "$dir/trained.pt2" --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/on" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"

# Units are the modules of Python; the plan is one for any machine.
"$sfsdp" inspect "${flags[@]}" --world 4 --graph >"$dir/graph"
grep -q "^  %layers.1.flat = param members=\[.*layers.1.down_proj.weight" "$dir/graph" || fail "units: $(grep " = param " "$dir/graph")"
grep -q ' at layers.0.gate_proj$' "$dir/graph" || fail "module paths: $(head -40 "$dir/graph")"
"$sfsdp" simulate "${flags[@]}" --machine dgx_h100 --world 8 --json >"$dir/json"
grep -q '"step_seconds"' "$dir/json" || fail "$(cat "$dir/json")"
"$sfsdp" plan "${flags[@]}" --world 2 --out "$dir/plan" >/dev/null && "$sfsdp" plan --check "$dir/plan" >/dev/null || fail "plan"

# What cannot be trained is told with what helps.
told() { # words that the error must have; flags
  local words=$1
  shift
  "$sfsdp" train "${flags[@]}" "$@" >"$dir/log" 2>&1 && fail "trained: $*"
  grep -qF -- "$words" "$dir/log" || fail "expected \"$words\": $(cat "$dir/log")"
}
told "no input \"input_idz\"" --model.inputs input_idz=tokens
told "nothing is given to input \"labels\"" --model.inputs input_ids=tokens
told "no output \"los\"" --model.loss los
told "was not exported in bfloat16" --training.mixed_precision_param bfloat16
told "expected 10 in dimension 1, which was baked into the graph" --model.path "$PWD/tests/fixtures/exported/half.pt2" \
  --training.mixed_precision_param bfloat16 --training.local_batch_size 4
: >"$dir/empty"
told "no zip file" --model.path "$dir/empty"
told "model.path is empty" --model.path ""

# Images and labels, a tensor for each input: samples of safetensors files, validated too, resumed with the same losses.
python3 - "$dir/images.safetensors" <<'PY'
import json, random, struct, sys
random.seed(1)
pixels = [random.gauss(0, 1) for _ in range(40 * 3 * 8 * 8)]
label = [random.randrange(5) for _ in range(40)]
targets = [random.gauss(0, 1) for _ in range(40 * 5)]
data = struct.pack(f"<{len(pixels)}f", *pixels) + struct.pack(f"<{len(label)}q", *label) + struct.pack(f"<{len(targets)}f", *targets)
header = json.dumps({"pixels": dict(dtype="F32", shape=[40, 3, 8, 8], data_offsets=[0, 4 * len(pixels)]),
                     "label": dict(dtype="I64", shape=[40], data_offsets=[4 * len(pixels), 4 * len(pixels) + 320]),
                     "targets": dict(dtype="F32", shape=[40, 5], data_offsets=[4 * len(pixels) + 320, len(data)])}).encode()
header += b" " * (-len(header) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + data)
PY
tensors=(--model.name exported --model.path "$PWD/tests/fixtures/exported/convolutions.pt2" --training.dataset tensors
  --training.dataset_path "$dir/images.safetensors" --training.local_batch_size 4 --training.mixed_precision_param float32 --metrics.log_freq 1
  --validation.enable --validation.dataset tensors --validation.dataset_path "$dir/images.safetensors" --validation.local_batch_size 4)
images=("${tensors[@]}" --model.loss 0)
"$sfsdp" launch -n 2 --log-rank 0 -- train "${images[@]}" --training.steps 8 --job.dump_folder "$dir/images" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
grep -q '40 samples in 1 file: label i64\[\], pixels f32\[3, 8, 8\], targets f32\[5\]' "$dir/log" || fail "the dataset: $(cat "$dir/log")"
"$sfsdp" launch -n 2 -- train "${images[@]}" --training.steps 3 --lr_scheduler.total_steps 8 --job.dump_folder "$dir/again" --checkpoint.enable \
  --checkpoint.interval 3 --checkpoint.no_last_save_model_only >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" launch -n 2 -- train "${images[@]}" --training.steps 8 --job.dump_folder "$dir/again" --checkpoint.enable >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
[[ $(losses "$dir/images" | wc -l) == 8 ]] || fail "eight steps: $(cat "$dir/images/metrics.jsonl")"
diff <(losses "$dir/images" | sort) <(losses "$dir/again" | sort -u) || fail "images: stopped and resumed, the losses differ"

# What an archive holds, and what of it cannot be trained.
"$sfsdp" inspect --model.path tests/fixtures/exported/decoder.pt2 >"$dir/log" 2>&1 || fail "inspect: $(cat "$dir/log")"
for line in '  input_ids  i64\[s[0-9]* of 1 to 64, s[0-9]* of 2 to 64\]' '  loss  f32\[\]  could be model.loss' \
  '  layers\.\*\.q_proj\.weight  f32\[16, 16\]  × 2' 'All ops can be trained'; do
  grep -qx -- "$line" "$dir/log" || fail "inspect lacks \"$line\": $(cat "$dir/log")"
done
other_op convolutions aten.conv2d.default libx.conv2d.default "$dir/libx.pt2"
"$sfsdp" inspect --model.path "$dir/libx.pt2" >"$dir/log" 2>&1 && fail "an op of libx can be trained"
grep -q '^Not trained: torch.ops.libx.conv2d.default at ' "$dir/log" || fail "inspect: $(cat "$dir/log")"

# The page's replacement of a custom op is the one that a test runs.
sed -n '/^```cpp/,/^```$/p' docs/exported_models.md | grep -v '^```' | sed 's/^ *//' >"$dir/example"
sed 's/^ *//' sfsdp/models/exported/exported_graph_test.cc >"$dir/lines"
[[ $(wc -l <"$dir/example") == 4 ]] || fail "docs/exported_models.md has another example: $(cat "$dir/example")"
grep -Fxvf "$dir/lines" "$dir/example" && fail "no test runs these lines of docs/exported_models.md"

for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import torch, transformers' 2>/dev/null && python=$(realpath -s "$candidate") && break
done
[[ -n ${python:-} ]] || { echo "SKIP: transformers and torch are not here; ./setup.sh --tests installs them into .venv"; exit 77; }
# Python opens what was exported, with the same loss, and takes the state dict strictly.
"$python" - "$dir" <<'PY' || fail "what was exported is not what Python reads"
import json, sys
import numpy as np, torch
folder = sys.argv[1]
program = torch.export.load(folder + "/trained.pt2")
tokens = np.fromfile("tests/fixtures/tokens.bin", dtype=np.uint16).astype(np.int64)
batch = torch.tensor(np.stack([tokens[j * 16 : j * 16 + 16] for j in range(2)]))
loss = program.module()(input_ids=batch, labels=batch.clone())["loss"].item()
here = json.loads(open(folder + "/on/metrics.jsonl").readline())["loss"]
assert abs(loss - here) <= 1e-6 * loss, (loss, here)
header = open(folder + "/trained.safetensors", "rb").read()
size = int.from_bytes(header[:8], "little")
state = {}
for name, row in json.loads(header[8 : 8 + size]).items():
    if name == "__metadata__":
        continue
    begin, end = (8 + size + at for at in row["data_offsets"])
    state[name] = torch.frombuffer(bytearray(header[begin:end]), dtype=torch.float32).view(row["shape"])
program.module().load_state_dict(state, strict=True)
was = torch.export.load("tests/fixtures/exported/decoder.pt2").state_dict
for name, value in program.state_dict.items():
    assert torch.equal(value, state[name]), name
    assert not torch.equal(value, was[name]), name + " is as it was"
PY

# Evaluation runs another archive, here one whose loss is twice as large; a mean squared error is PyTorch's, as is the loss under
# torch.autocast.
"$python" - "$dir" <<'PY' || fail "no archive for evaluation"
import json, sys
import torch
sys.path.insert(0, "tests/fixtures")
sys.dont_write_bytecode = True
import make_exported


class Twice(make_exported.Convolutions):
    def forward(self, pixels, label):
        loss, logits = super().forward(pixels, label)
        return loss * 2, logits


class Lower(make_exported.Convolutions):
    def forward(self, pixels, label):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(pixels, label)


class Again(torch.nn.Module):
    def __init__(self, nests):
        super().__init__()
        torch.manual_seed(7)
        self.nests = nests
        self.mix, self.head = torch.nn.Linear(192, 192), torch.nn.Linear(192, 5)

    def forward(self, pixels, label):
        x = pixels.flatten(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.mix(self.mix(self.mix(x)))
            if self.nests:
                with torch.autocast("cpu", enabled=False):
                    x = x.float()
                x = x.clone().addmm_(x, self.mix.weight)
            return torch.nn.functional.cross_entropy(self.head(x), label), x


example = dict(pixels=torch.randn(4, 3, 8, 8), label=torch.zeros(4, dtype=torch.int64))
torch.export.save(torch.export.export(Twice().eval(), (), example, strict=False), sys.argv[1] + "/eval.pt2")
torch.export.save(torch.export.export(Lower().train(), (), example, strict=False), sys.argv[1] + "/lower.pt2")
data = open(sys.argv[1] + "/images.safetensors", "rb").read()
size = int.from_bytes(data[:8], "little")
rows = json.loads(data[8 : 8 + size])
first = lambda name, dtype: torch.frombuffer(bytearray(data[8 + size + rows[name]["data_offsets"][0] : 8 + size + rows[name]["data_offsets"][1]]),
                                             dtype=dtype).view(rows[name]["shape"])[:4]
for name, nests in (("again", True), ("again_strict", False)):  # PyTorch cannot run what strict=True writes of regions in regions
    again = Again(nests).train()
    torch.export.save(torch.export.export(again, (), example, strict=not nests), f"{sys.argv[1]}/{name}.pt2")
    loss = again(first("pixels", torch.float32), first("label", torch.int64))[0]
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(again.parameters(), 1.0)
    json.dump(dict(loss=loss.item(), grad_norm=norm.item()), open(f"{sys.argv[1]}/{name}.json", "w"))
PY
once=("${images[@]}" --training.steps 1 --optimizer.lr 0 --training.shuffle never --metrics.log_freq 1)
validated() { sed -n 's/.*"validation_loss": \([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | head -1; }
"$sfsdp" train "${once[@]}" --job.dump_folder "$dir/one" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" train "${once[@]}" --model.eval_path "$dir/eval.pt2" --job.dump_folder "$dir/two" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" train "${once[@]}" --model.eval_path tests/fixtures/exported/shared.pt2 --job.dump_folder "$dir/none" >"$dir/log" 2>&1 && fail "evaluated another model"
grep -q 'shared.pt2 reads "frozen", which .* does not have' "$dir/log" || fail "another model: $(cat "$dir/log")"
"$sfsdp" train "${tensors[@]}" --model.prediction 1 --training.steps 1 --optimizer.lr 0 --training.shuffle never --job.dump_folder "$dir/error" \
  >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" train "${once[@]}" --model.path "$dir/lower.pt2" --job.dump_folder "$dir/lower" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
for archive in again again_strict; do # by LibTorch's kernels, which round to bfloat16 wherever PyTorch does
  "$sfsdp" train "${once[@]}" --exec.rows aten --model.path "$dir/$archive.pt2" --job.dump_folder "$dir/$archive" >"$dir/log" 2>&1 || fail "$archive: $(cat "$dir/log")"
done
"$python" - "$dir" "$(validated "$dir/one")" "$(validated "$dir/two")" <<'PY' || fail "evaluation, or the mean squared error"
import json, sys
import torch
folder, one, two = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
assert abs(two - 2 * one) <= 1e-6 * two, (one, two)
data = open(folder + "/images.safetensors", "rb").read()
size = int.from_bytes(data[:8], "little")
rows = json.loads(data[8 : 8 + size])


def first(name, dtype):
    row = rows[name]
    begin, end = (8 + size + at for at in row["data_offsets"])
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).view(row["shape"])[:4]


logits = torch.export.load("tests/fixtures/exported/convolutions.pt2").module()(pixels=first("pixels", torch.float32), label=first("label", torch.int64))[1]
expected = torch.nn.functional.mse_loss(logits, first("targets", torch.float32)).item()
got = json.loads(open(folder + "/error/metrics.jsonl").readline())["loss"]
assert abs(got - expected) <= 1e-6 * expected, (got, expected)

model = torch.export.load(folder + "/lower.pt2").module()
calls = [node for m in model.modules() if isinstance(m, torch.fx.GraphModule) for node in m.graph.nodes if "wrap_with_autocast" in str(node.target)]
assert calls, "the export has no autocast"
batch = dict(pixels=first("pixels", torch.float32), label=first("label", torch.int64))
lower = model(**batch)[0].item()
for node in calls:
    node.args = (*node.args[:2], False, *node.args[3:])
for m in model.modules():
    if isinstance(m, torch.fx.GraphModule):
        m.recompile()
wide = model(**batch)[0].item()
got = json.loads(open(folder + "/lower/metrics.jsonl").readline())["loss"]
assert abs(got - lower) <= 1e-6 * lower, (got, lower)
for archive in ("again", "again_strict"):  # a weight that is read thrice, an op in place, regions in regions
    eager = json.load(open(f"{folder}/{archive}.json"))
    step = json.loads(open(f"{folder}/{archive}/metrics.jsonl").readline())
    for key, bar in (("loss", 1e-6), ("grad_norm", 5e-6)):
        assert abs(step[key] - eager[key]) <= bar * eager[key], (archive, key, step[key], eager[key])
assert 4 * abs(got - lower) < abs(got - wide), (got, lower, wide)  # how far bfloat16 is off is the processor's affair
PY

sed -n 's/^    //p' docs/exported_models.md | sed '/^sfsdp /,$d' >"$dir/export.py"
grep -q 'torch.export.save' "$dir/export.py" || fail "docs/exported_models.md has no program that exports"
sed -n 's/^    //p' docs/exported_models.md | awk '/^sfsdp launch /, !/\\$/' | tr -d '\\\n' >"$dir/train"
(cd "$dir" && "$python" export.py >"$dir/log" 2>&1) || fail "$(cat "$dir/log")"
(cd "$dir" && eval "${sfsdp%sfsdp}$(cat "$dir/train") --training.steps 3" >"$dir/log" 2>&1) || fail "$(cat "$dir/log")"
[[ -e $dir/outputs/metrics.jsonl ]] || fail "the page's run left nothing: $(ls "$dir")"
