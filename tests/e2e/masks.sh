#!/usr/bin/env bash
# Prompts and completions, and documents that are apart: the same losses on one rank, on two, after a stop on three, and from token files with masks. A step
# that counts no target, masks that no key asks for and lines without a completion are said with their place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

# Lengths differ widely, so that ranks and micro-batches count unlike many targets.
python3 - "$dir" <<'PY'
import json, random, sys
random.seed(2)
words = "the quick brown fox jumps over a lazy dog and runs".split()
def line(i):
    prompt = " ".join(random.choice(words) for _ in range(random.randint(0, 30)))
    if i % 5 == 0: return {"tokens": [random.randrange(500) for _ in range(9)], "mask": [0, 0, 0, 1, 1, 1, 0, 0, 1]}
    if i % 7 == 0: return {"text": prompt + " end"}
    return {"prompt": prompt, "completion": " zebra" * random.randint(1, 8)}
for name, count in (("chat", 80), ("held_out", 12)):
    with open(f"{sys.argv[1]}/{name}.jsonl", "w") as out:
        for i in range(count): out.write(json.dumps(line(i)) + "\n")
with open(f"{sys.argv[1]}/prompts.jsonl", "w") as out:
    for i in range(40): out.write(json.dumps({"tokens": list(range(60)), "mask": [0] * 60}) + "\n")
PY
mkdir "$dir/tokenizer"
cp tests/fixtures/tokenizers/llama3/tokenizer.json "$dir/tokenizer"
echo '{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}' >"$dir/tokenizer/tokenizer_config.json"
cat >"$dir/job.toml" <<TOML
[job]
dump_folder = "$dir/one"
[model]
flavor = "debugmodel"
hf_assets_path = "$dir/tokenizer"
[model.args]
vocab_size = 512
n_layers = 1
[lr_scheduler]
warmup_steps = 2
decay_ratio = 0.0
[training]
dataset = "jsonl"
dataset_path = "$dir/chat.jsonl"
loss_mask = true
local_batch_size = 6
seq_len = 16
steps = 6
mixed_precision_param = "float32"
[validation]
enable = true
dataset = "jsonl"
dataset_path = "$dir/held_out.jsonl"
local_batch_size = 6
seq_len = 16
freq = 3
[checkpoint]
enable = true
interval = 3
TOML

train=(train --config "$dir/job.toml")
runs() { "$sfsdp" "$@" >"$dir/out" 2>&1 || fail "$* failed: $(cat "$dir/out")"; }
runs "${train[@]}"
cp -r "$dir/one" "$dir/rest"
rm -rf "$dir/rest/checkpoint/step-6" "$dir/rest/metrics.jsonl"
runs launch -n 2 -- "${train[@]}" --job.dump_folder "$dir/two" --training.local_batch_size 3
runs launch -n 3 -- "${train[@]}" --job.dump_folder "$dir/rest" --training.local_batch_size 2 --validation.local_batch_size 2
runs "${train[@]}" --job.dump_folder "$dir/micro" --training.local_batch_size 2 --training.global_batch_size 6
runs tokenize "$dir/chat.jsonl" --tokenizer "$dir/tokenizer" --out "$dir/chat" --loss-mask
runs "${train[@]}" --job.dump_folder "$dir/files" --training.dataset tokens --training.dataset_path "$dir/chat" --training.loss_chunks 3
# Documents that are apart are so on any number of ranks, and with recomputation; the losses are others than those of joined ones.
runs "${train[@]}" --job.dump_folder "$dir/apart" --training.document_mask
runs launch -n 2 -- "${train[@]}" --job.dump_folder "$dir/apart-two" --training.document_mask --training.local_batch_size 3 \
  --activation_checkpoint.mode full
python3 - "$dir" <<'PY'
import json, sys
def rows(name, key):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
    return {line["step"]: line[key] for line in lines if key in line}
counted, validated = rows("one", "targets"), rows("one", "validation_tokens")
assert len(set(counted.values())) > 1 and all(0 < n < 6 * 16 for n in counted.values()), counted
for name, steps, validations in (("two", 6, 3), ("rest", 3, 1), ("micro", 6, 3), ("files", 6, 3)):
    assert all(counted[step] == n for step, n in rows(name, "targets").items()), name
    assert all(validated[step] == n for step, n in rows(name, "validation_tokens").items()), name
    for key, count in (("loss", steps), ("grad_norm", steps), ("validation_loss", validations)):
        mine, theirs = rows("one", key), rows(name, key)
        assert len(theirs) == count, (name, key, theirs)
        for step, value in theirs.items(): assert abs(value - mine[step]) <= 2e-6 * mine[step], (name, key, step, value, mine[step])
for key in ("loss", "grad_norm", "validation_loss"):
    mine, theirs = rows("apart", key), rows("apart-two", key)
    assert mine.keys() == theirs.keys() and len(mine) >= 3, (key, mine, theirs)
    for step, value in theirs.items(): assert abs(value - mine[step]) <= 2e-6 * mine[step], (key, step, value, mine[step])
    # a step differs where a row has a document after another, and a target of it counts
    assert key == "validation_loss" or any(abs(value - rows("one", key)[step]) > 1e-4 for step, value in mine.items()), key
PY

# What is refused, with the cure.
told() { # $1: what is said; then flags
  local what=$1
  shift
  if $sfsdp "${train[@]}" --checkpoint.no_enable --validation.no_enable --job.dump_folder "$dir/wrong" "$@" >"$dir/out" 2>&1; then fail "taken: $*"; fi
  grep -q -F -e "$what" "$dir/out" || fail "not told '$what': $(cat "$dir/out")"
}
told "loss counts none of the 96 targets of step 1" --training.dataset_path "$dir/prompts.jsonl"
told "prompts and masks need --loss-mask of sfsdp tokenize, training.loss_mask of a run" --training.no_loss_mask
told "says which of its ids the loss counts" --training.no_loss_mask --training.dataset tokens --training.dataset_path "$dir/chat"
echo '{"prompt": "and then?", "completion": ""}' >>"$dir/chat.jsonl"
told 'chat.jsonl:81: "completion" is empty'
