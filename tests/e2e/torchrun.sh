#!/usr/bin/env bash
# What starts ranks changes nothing: torchrun and `sfsdp launch` report the same losses, bit for bit. run_train.sh takes
# NGPU, LOG_RANK, CONFIG_FILE and --section.key value as TorchTitan's script does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
repo=$PWD sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir # where torchrun leaves its logs
fail() { echo "$*"; exit 1; }
small=(--training.steps 3 --training.seq_len 16 --training.local_batch_size 1 --model.args.n_layers 1
  --training.dataset_max_bytes 100000)
debug=(--job.config_file configs/llama3_debug.toml "${small[@]}")
same_losses() {
  python3 - "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" <<'PY'
import json, sys
one, two = ([{k: row[k] for k in ("step", "loss", "grad_norm", "lr", "tokens")} for row in map(json.loads, open(name))]
            for name in sys.argv[1:])
assert len(one) == 3 and one == two, (one, two)
PY
}

# Checks of run_train.sh: it must be callable from elsewhere, with a config named from there.
sed 's/^description = .*/description = "small"/; s/^steps = .*/steps = 50/' configs/llama3_debug.toml >"$dir/small.toml"
(cd "$dir" && NGPU=4 LOG_RANK=0,3 CONFIG_FILE=./small.toml "$repo/run_train.sh" "${small[@]}" --training.steps 2 \
  --job.print_config --job.dump_folder "$dir/four") >"$dir/out" 2>&1 || fail "run_train.sh: $(cat "$dir/out")"
for line in 'Mesh \[dp_shard=4\]' 'description = "small"' 'total steps 2 ' 'step:  2 '; do
  grep -q "^\[rank0\]: .*$line" "$dir/out" || fail "run_train.sh: no line of rank 0 with $line in: $(cat "$dir/out")"
done
LOG_RANK=1 ./run_train.sh "${small[@]}" --job.dump_folder "$dir/launch" >"$dir/out" 2>&1 || fail "LOG_RANK=1: $(cat "$dir/out")"
[[ $(grep -c 'step:  3 ' "$dir/out") == 1 ]] || fail "LOG_RANK=1 does not show the steps of one rank: $(cat "$dir/out")"
[[ -s $dir/launch/metrics.jsonl ]] || fail "run_train.sh: no metrics of two ranks"

# torchrun belongs to the Python whose torch this build links; a LibTorch without Python has none.
torch=$(realpath "$(sed -n 's/^SFSDP_TORCH_DIR:PATH=//p' build/release/CMakeCache.txt)")
torchrun=
for python in python3 .venv/bin/python3; do
  [[ $("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null |
    xargs -r realpath) == "$torch" ]] || continue
  torchrun=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/torchrun
  [[ -x $torchrun ]] && break || torchrun=
done
if [[ -z $torchrun ]]; then
  echo "torchrun not tested: no Python has both the torch at $torch and a torchrun"
  exit 77
fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
OMP_NUM_THREADS=1 "$torchrun" --no-python --nproc-per-node 2 --master-port "$port" "$sfsdp" train "${debug[@]}" \
  --job.dump_folder "$dir/torchrun" >"$dir/out" 2>&1 || fail "torchrun: $(cat "$dir/out")"
same_losses launch torchrun || fail "torchrun and sfsdp launch differ"
# its other store: rendezvous over c10d
OMP_NUM_THREADS=1 "$torchrun" --standalone --no-python --nproc-per-node 2 "$sfsdp" train "${debug[@]}" \
  --job.dump_folder "$dir/standalone" >"$dir/out" 2>&1 || fail "torchrun --standalone: $(cat "$dir/out")"
same_losses launch standalone || fail "torchrun --standalone and sfsdp launch differ"

# Elastic restarts: a rank is killed in the middle, torchrun starts all again, they go on from the newest checkpoint, and the
# losses are those of a run that nothing happened to.
long=(--job.config_file configs/llama3_debug.toml "${small[@]}" --training.steps 60 --checkpoint.enable --checkpoint.interval 5)
$sfsdp launch -n 2 -- train "${long[@]}" --job.dump_folder "$dir/undisturbed" >"$dir/out" 2>&1 || fail "60 steps: $(cat "$dir/out")"
OMP_NUM_THREADS=1 "$torchrun" --standalone --max-restarts=2 --no-python --nproc-per-node 2 "$sfsdp" train "${long[@]}" \
  --job.dump_folder "$dir/restarted" >"$dir/out" 2>&1 &
agent=$!
for _ in $(seq 600); do
  [[ -f $dir/restarted/metrics.jsonl && $(wc -l <"$dir/restarted/metrics.jsonl") -ge 12 ]] && break
  sleep 0.1
done
victim=$(pgrep -P $agent -x 'sfsdp(-torch)?' | tail -1)
[[ -n $victim ]] || fail "no rank of torchrun to kill: $(tail -20 "$dir/out")"
kill -KILL "$victim"
wait $agent || fail "torchrun --max-restarts: $(tail -40 "$dir/out")"
grep -q "State of $dir/restarted/checkpoint/step-" "$dir/out" || fail "not from a checkpoint: $(tail -40 "$dir/out")"
python3 - "$dir/undisturbed/metrics.jsonl" "$dir/restarted/metrics.jsonl" <<'PY' || fail "other losses after a restart"
import json, sys
one, two = ({row["step"]: (row["loss"], row["grad_norm"], row["tokens"]) for row in map(json.loads, open(name))} for name in sys.argv[1:])
assert len(one) == 60 and one == two, [(k, one.get(k), two.get(k)) for k in one if one.get(k) != two.get(k)][:3]
PY
