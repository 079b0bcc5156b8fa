#!/usr/bin/env bash
# A run that is stopped and goes on reports the losses of one that was not stopped, bit for bit; so does one that goes on
# on another mesh, as far as sums in another order allow. What cannot be gone on from says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --training.local_batch_size 2 --lr_scheduler.total_steps 8 --metrics.log_freq 1)
saving=(--checkpoint.enable --checkpoint.interval 2 --checkpoint.no_last_save_model_only)
two() { $sfsdp launch -n 2 --log-rank 0 -- "${common[@]}" "$@"; }
losses() { python3 -c '
import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"):
    r = json.loads(line)
    print(r["step"], r["loss"], r["grad_norm"], r["lr"], r["tokens"])' "$1"; }

two --training.steps 8 --job.dump_folder "$dir/whole" >/dev/null
two --training.steps 4 --job.dump_folder "$dir/parts" "${saving[@]}" | tee "$dir/log"
grep -q "Saved $dir/parts/checkpoint/step-4: " "$dir/log"
cp -r "$dir/parts" "$dir/killed"
two --training.steps 8 --job.dump_folder "$dir/parts" "${saving[@]}" --checkpoint.async_mode async | tee "$dir/log"
grep -q "Training starts at step 5" "$dir/log"
diff <(losses "$dir/whole") <(losses "$dir/parts")

# A run that had gone on past its last checkpoint writes the lines of those steps once.
head -c -20 "$dir/whole/metrics.jsonl" >"$dir/killed/metrics.jsonl"
two --training.steps 8 --job.dump_folder "$dir/killed" "${saving[@]}" >/dev/null
diff <(losses "$dir/whole") <(losses "$dir/killed")

# One rank, another layout: the same state, and nearly the same losses.
cp -r "$dir/parts" "$dir/one"
rm -rf "$dir"/one/checkpoint/step-[68]
$sfsdp "${common[@]}" --training.local_batch_size 4 --training.steps 8 --parallelism.fsdp_layout dim0 \
  --job.dump_folder "$dir/one" --checkpoint.enable
paste <(losses "$dir/whole") <(losses "$dir/one") | awk '$2 != $7 && ($2 - $7) ^ 2 > (1e-6 * $2) ^ 2 { print; bad = 1 } END { exit bad || NR != 8 }'

# The last save of that run holds the model alone.
if $sfsdp "${common[@]}" --training.local_batch_size 4 --training.steps 9 --job.dump_folder "$dir/one" --checkpoint.enable \
  --checkpoint.load_step 8 >"$dir/log" 2>&1; then cat "$dir/log"; exit 1; fi
grep -q "holds the model alone" "$dir/log"

# exclude_from_loading and load_step hold for the first start of a launch: its restart warms up no second time, and goes
# back no second time.
cp -r "$dir/parts" "$dir/launched"
start() { # RESTART STEPS FLAG…: as a launcher starts it
  TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=$1 $sfsdp "${common[@]}" --training.steps "$2" "${@:3}" \
    --job.dump_folder "$dir/launched" "${saving[@]}" --training.local_batch_size 4 --lr_scheduler.total_steps 40 --lr_scheduler.warmup_steps 20
}
start 0 6 --checkpoint.load_step 4 --checkpoint.exclude_from_loading lr_scheduler >"$dir/log"
grep -q "State of $dir/launched/checkpoint/step-4 without lr_scheduler" "$dir/log" || { cat "$dir/log"; exit 1; }
start 1 8 --checkpoint.load_step 4 --checkpoint.exclude_from_loading lr_scheduler >"$dir/log"
grep -q "held for an earlier start of this launch" "$dir/log" || { cat "$dir/log"; exit 1; }
grep -q "Training starts at step 7" "$dir/log" || { cat "$dir/log"; exit 1; }
python3 - "$dir/launched/metrics.jsonl" <<'PY'
import json, sys
lr = {r["step"]: r["lr"] for r in map(json.loads, open(sys.argv[1]))}
first = lr[5]
assert all(abs(lr[4 + i] - i * first) < 1e-9 * first * i for i in (1, 2, 3, 4)), lr
PY

# A run that cannot recover ends, and what was before it stays.
cp -r "$dir/parts" "$dir/lost"
if $sfsdp "${common[@]}" --training.local_batch_size 4 --training.steps 40 --job.dump_folder "$dir/lost" "${saving[@]}" \
  --checkpoint.interval 1 --checkpoint.keep_latest_k 2 --optimizer.lr 1e30 --training.max_norm 1e30 >"$dir/log" 2>&1; then cat "$dir/log"; exit 1; fi
grep -q "nothing was updated in 10 steps in a row" "$dir/log" || { cat "$dir/log"; exit 1; }
$sfsdp checkpoint verify "$dir/lost/checkpoint/step-8" >/dev/null

# The tools see what the runs left: every byte, and the same numbers whatever mesh they come from.
$sfsdp checkpoint ls "$dir/parts/checkpoint" >"$dir/log"
[[ $(grep -c '^step-[2468]: .* of 2 ranks \[dp_shard=2\]' "$dir/log") == 4 ]] || { cat "$dir/log"; exit 1; }
$sfsdp checkpoint verify "$dir/parts/checkpoint" >/dev/null
$sfsdp checkpoint convert "$dir/parts/checkpoint/step-8" "$dir/converted" --ranks 3 >/dev/null
$sfsdp checkpoint diff "$dir/parts/checkpoint/step-8" "$dir/converted/step-8" >"$dir/log"
grep -q ', 0 of all differ' "$dir/log" || { cat "$dir/log"; exit 1; }
$sfsdp checkpoint diff "$dir/parts/checkpoint/step-8" "$dir/whole" >/dev/null 2>&1 && { echo "no checkpoint has no differences"; exit 1; }

# The same weights for transformers, from the run itself and from its checkpoint.
cp -r "$dir/parts" "$dir/exported"
rm -rf "$dir"/exported/checkpoint/step-[68]
two --training.steps 8 --job.dump_folder "$dir/exported" --checkpoint.enable --checkpoint.last_save_in_hf --model.hf_assets_path= >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
$sfsdp checkpoint convert "$dir/parts/checkpoint/step-8" "$dir/hf" --hf-assets "$dir/exported/checkpoint/hf-step-8" >/dev/null
python3 - "$dir/hf/model.safetensors" "$dir/exported/checkpoint/hf-step-8/model.safetensors" <<'PY'
import json, sys
def tensors(path):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little") + 8
    header = json.loads(data[8:size])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[size + t["data_offsets"][0]:size + t["data_offsets"][1]]) for n, t in header.items()}
converted, exported = map(tensors, sys.argv[1:])
assert len(converted) > 10 and converted == exported, [n for n in exported if converted.get(n) != exported[n]]
PY

# Another model's config.json is refused before anything is written: of other shapes, and of heads that shapes do not show.
for change in 'c["intermediate_size"] = 64' 'c["num_attention_heads"] //= 2; c["num_key_value_heads"] //= 2; c["head_dim"] *= 2'; do
  mkdir -p "$dir/other"
  python3 - "$dir/exported/checkpoint/hf-step-8/config.json" "$dir/other/config.json" "$change" <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
exec(sys.argv[3])
json.dump(c, open(sys.argv[2], "w"))
PY
  $sfsdp checkpoint convert "$dir/parts/checkpoint/step-8" "$dir/refused" --hf-assets "$dir/other" >"$dir/log" 2>&1 && { cat "$dir/log"; exit 1; }
  grep -qE "has shape \[|its model has n_heads = " "$dir/log" || { cat "$dir/log"; exit 1; }
  ls -d "$dir"/refused* 2>/dev/null && exit 1
done

# One rank writes step 0, from which any mesh begins.
$sfsdp "${common[@]}" --job.dump_folder "$dir/seed" --checkpoint.enable --checkpoint.create_seed_checkpoint >/dev/null
two --training.steps 8 --job.dump_folder "$dir/seed" "${saving[@]}" >"$dir/log"
grep -q "State of $dir/seed/checkpoint/step-0" "$dir/log"
diff <(losses "$dir/whole") <(losses "$dir/seed")
