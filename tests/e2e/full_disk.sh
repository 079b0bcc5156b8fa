#!/usr/bin/env bash
# The disk under metrics.jsonl, TensorBoard's files and the console's is full for some steps, that of the checkpoints is not:
# the run says so once for each file, trains and saves on, and its files are whole again when there is room.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ -z ${SFSDP_FULL_DISK:-} ]]; then # mounts of its own
  unshare -m --propagation private true 2>/dev/null || { echo "SKIP: no right to mount a small disk here"; exit 77; }
  SFSDP_FULL_DISK=1 exec unshare -m --propagation private "$0"
fi
dir=$(mktemp -d)
mkdir "$dir/small" "$dir/large"
mount -t tmpfs -o size=1m tmpfs "$dir/small" || { echo "SKIP: no right to mount a small disk here"; exit 77; }
trap 'umount -l "$dir/small"; rm -rf "$dir"' EXIT
fail() { echo "$*"; tail -20 "$dir/small/out"; exit 1; }
run=$dir/small/run
mkdir "$run" && ln -s "$dir/large" "$run/checkpoint"
steps() { grep -o '^{"step": [0-9]*' "$run/metrics.jsonl" | grep -o '[0-9]*$'; }
saved() { ls -d "$dir/large"/step-* 2>/dev/null | grep -o '[0-9]*$' | sort -n | tail -1; }
until_that() { # command; says what was waited for
  for _ in $(seq 600); do "$@" && return; sleep 0.1; done
  fail "not within 60 s: $*"
}
timeout 250 build/release/sfsdp launch -n 1 -- train --config configs/llama3_debug.toml --training.seq_len 16 \
  --training.local_batch_size 1 --model.args.n_layers 1 --training.dataset_max_bytes 100000 --training.steps 100000 \
  --job.dump_folder "$run" --metrics.enable_tensorboard --metrics.log_freq 1 --checkpoint.enable --checkpoint.interval 20 \
  --checkpoint.keep_latest_k 2 --checkpoint.last_save_model_only false >"$dir/small/out" 2>&1 &
launcher=$!
has_steps() { (($(steps 2>/dev/null | wc -l) > 20)); }
until_that has_steps
dd if=/dev/zero of="$dir/small/fill" bs=4k 2>/dev/null # until nothing fits
before=$(steps | tail -1)
saves_more() {
  local latest
  kill -0 $launcher || fail "the run has ended"
  latest=$(saved) || latest=0
  ((${1} < latest))
}
until_that saves_more $((before + 100))
last=$(steps | tail -1) # a block that was begun still had room
python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$run/metrics.jsonl" || fail "a line is cut"
rm "$dir/small/fill"
goes_on() { (($(steps | tail -1) > last + 100)); }
until_that goes_on
pkill -TERM -P $launcher || kill -TERM $launcher
wait $launcher
[[ $? == 75 ]] || fail "exit code $?, expected 75: stopped and saved"
for what in "metrics.jsonl" "events.out.tfevents[^:]*"; do
  for said in "No space left on device; training goes on" "is written again; [0-9]* records are missing"; do
    # The console was on the full disk too: what was said while it was full may be lost.
    count=$(grep -cE "$what: $said" "$dir/small/out")
    ((count <= 1)) || fail "$what: \"$said\" is said $count times"
    [[ $said == No* || $count == 1 ]] || fail "$what: \"$said\" is not said"
  done
done
python3 - "$run" "$last" <<'PY' || fail "metrics.jsonl or the event file are not whole"
import glob, json, re, struct, sys
folder, last = sys.argv[1], int(sys.argv[2])
steps = [json.loads(line)["step"] for line in open(f"{folder}/metrics.jsonl")]
gaps = [(a, b) for a, b in zip(steps, steps[1:]) if b != a + 1] # a shorter record may fit where one before it did not
said = [int(n) for n in re.findall(r"metrics.jsonl: is written again; (\d+) records", open(f"{folder}/../out").read())]
missing = sum(b - a - 1 for a, b in gaps)
assert steps == sorted(set(steps)) and gaps and gaps[-1][0] == last and [missing] == said, (gaps, last, said)
(name,) = glob.glob(f"{folder}/tb/*/events*")
data, at, records = open(name, "rb").read(), 0, 0
while at < len(data):
    length, = struct.unpack_from("<Q", data, at)
    assert at + 16 + length <= len(data) and length < 10000, (at, length)
    at, records = at + 16 + length, records + 1
assert len(steps) // 2 < records <= len(steps) + 1 + missing, (records, len(steps))
PY
exit 0
