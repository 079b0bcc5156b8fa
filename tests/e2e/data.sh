#!/usr/bin/env bash
# A mix of JSON lines, text and token ids, shuffled, with validation: the same losses on one rank and on two, and after a stop.
# Text is tokenized once, by one process, and again when it changed. What is wrong with data is said with its place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

python3 - "$dir" <<'PY'
import array, json, os, random, sys
random.seed(1)
os.makedirs(f"{sys.argv[1]}/text")
word = lambda: random.choice("the quick brown fox jumps over a lazy dog and runs".split())
text = lambda: " ".join(word() for _ in range(random.randint(0, 60)))
for part in range(2):
    with open(f"{sys.argv[1]}/web{part}.jsonl", "w") as out:
        for _ in range(60): out.write(json.dumps({"text": text()}) + "\n")
for i in range(9): open(f"{sys.argv[1]}/text/{i}.txt", "w").write(text() + " end")
array.array("H", [random.randrange(500) for _ in range(3000)]).tofile(open(f"{sys.argv[1]}/ids.bin", "wb"))
with open(f"{sys.argv[1]}/held_out.jsonl", "w") as out:
    for _ in range(20): out.write(json.dumps({"text": text() + " end"}) + "\n")
PY
mkdir "$dir/tokenizer"
cp tests/fixtures/tokenizers/llama3/tokenizer.json "$dir/tokenizer"
echo '{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}' >"$dir/tokenizer/tokenizer_config.json"
cat >"$dir/job.toml" <<TOML
[job]
dump_folder = "$dir/one"
description = "mixed data"
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
dataset = "mix"
sources = ["0.5 jsonl $dir/web*.jsonl", "0.3 tokens $dir/ids.bin", "0.2 text $dir/text"]
local_batch_size = 6
seq_len = 24
steps = 6
mixed_precision_param = "float32"
[validation]
enable = true
dataset = "jsonl"
dataset_path = "$dir/held_out.jsonl"
local_batch_size = 4
seq_len = 16
freq = 3
[checkpoint]
enable = true
interval = 3
TOML

train=(train --config "$dir/job.toml")
$sfsdp "${train[@]}" >"$dir/one.out" 2>"$dir/err" || fail "$(cat "$dir/one.out" "$dir/err")"
[[ $(grep -c 'tokenized' "$dir/err") == 3 ]] || fail "expected three sets to be tokenized: $(cat "$dir/err")"
grep -q '120 documents, 50.00 % of the samples' "$dir/one.out" || fail "no share: $(cat "$dir/one.out")"

# Two ranks; the second has nothing to tokenize. They go on after step 3 of the run above.
cp -r "$dir/one" "$dir/rest"
rm -rf "$dir/rest/checkpoint/step-6" "$dir/rest/metrics.jsonl"
$sfsdp launch -n 2 -- "${train[@]}" --job.dump_folder "$dir/two" --training.local_batch_size 3 >"$dir/two.out" 2>&1 || fail "$(cat "$dir/two.out")"
[[ $(grep -c 'tokenized' "$dir/two.out") == 3 ]] || fail "expected one rank to tokenize each set: $(cat "$dir/two.out")"
$sfsdp launch -n 2 -- "${train[@]}" --job.dump_folder "$dir/rest" --training.local_batch_size 3 >"$dir/rest.out" 2>&1 || fail "$(cat "$dir/rest.out")"
! grep 'tokenized' "$dir/rest.out" || fail "tokenized again"
python3 - "$dir" <<'PY'
import json, sys
def losses(name):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
    return [{r["step"]: r[key] for r in rows if key in r} for key in ("loss", "validation_loss")]
one, two, rest = losses("one"), losses("two"), losses("rest")
assert list(one[0]) == list(two[0]) == [1, 2, 3, 4, 5, 6] and list(rest[0]) == [4, 5, 6], (one, two, rest)
assert list(one[1]) == list(two[1]) == [1, 3, 6] and list(rest[1]) == [6], (one, two, rest)
for other in (two, rest):
    for mine, theirs in zip(one, other):
        for step, loss in theirs.items(): assert abs(loss - mine[step]) <= 2e-6 * mine[step], (step, loss, mine[step])
PY

# Other contents are tokenized anew, and a line that is no JSON is named.
echo '{"text": "one more"}' >>"$dir/web1.jsonl"
$sfsdp "${train[@]}" --training.steps 1 --checkpoint.no_enable >"$dir/out" 2>"$dir/err" || fail "$(cat "$dir/err")"
[[ $(grep -c 'tokenized' "$dir/err") == 1 ]] || fail "expected the changed set to be tokenized: $(cat "$dir/err")"
echo '{"text": ' >>"$dir/web1.jsonl"
if $sfsdp "${train[@]}" --training.steps 1 --checkpoint.no_enable >"$dir/out" 2>"$dir/err"; then fail "a broken line is taken"; fi
grep -q 'web1.jsonl:62' "$dir/err" || fail "the broken line is not named: $(cat "$dir/err")"
