#!/usr/bin/env bash
# Ranks that mpirun starts: the suite of all communicators, training with the bits of sfsdp launch, and its faults.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ ! -e build/release/libsfsdp_mpi.so ]]; then
  echo "skipped: build/release/libsfsdp_mpi.so is not built, as MPI's C headers were not found (libopenmpi-dev)"
  exit 77
fi
if ! mpirun --version 2>/dev/null | grep -q "Open MPI"; then
  echo "skipped: no mpirun of Open MPI on this machine"
  exit 77
fi
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
launcher=
trap '[[ -z $launcher ]] || pkill -P "$launcher"; rm -rf "$dir"' EXIT
failures=0
fail() { echo "$1"; tail -20 "$dir/out"; failures=$((failures + 1)); }
# No network beyond loopback, ranks may share cores.
mpi() { timeout 400 mpirun --oversubscribe --mca btl self,vader,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo "$@"; }
[[ $EUID -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

for n in 2 4; do
  mpi -n $n build/release/core_tests --no-colors=true --no-skip -tc="mpi ranks:*" >"$dir/out" 2>&1 || fail "suite on $n ranks: exit code $?"
  [[ $(grep -c "test cases: *7 |.* 7 passed" "$dir/out") -eq $n ]] || fail "suite on $n ranks: not 7 passed on each"
done
# Without shared memory between ranks, as across hosts.
timeout 400 mpirun --oversubscribe --mca btl self,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo -n 2 \
  build/release/core_tests --no-colors=true --no-skip -tc="mpi ranks:*" >"$dir/out" 2>&1 || fail "suite over MPI's tcp: exit code $?"

small=(--job.config_file configs/llama3_debug.toml --training.seq_len 32 --training.local_batch_size 2 --model.args.n_layers 2
  --training.dataset_max_bytes 200000)
$sfsdp launch -n 2 -- train "${small[@]}" --training.steps 3 --job.dump_folder "$dir/launch" >"$dir/out" 2>&1 || fail "launch"
mpi -n 2 $sfsdp train "${small[@]}" --training.steps 3 --job.dump_folder "$dir/mpi" >"$dir/out" 2>&1 || fail "mpirun: exit code $?"
python3 - "$dir" <<'PY' || fail "losses differ"
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
for a, b in zip(rows("launch"), rows("mpi"), strict=True):
    assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
assert len(rows("mpi")) == 3
PY

trains() { grep -q "step:  2" "$dir/out"; }
until_that() {
  local what=$1
  shift
  for _ in $(seq 1200); do "$@" && return; sleep 0.1; done
  fail "not within 120 s: $what"
}
nobody_left() { ! pgrep -f "$dir/run" >/dev/null; }
start() { # $@: options; a run that goes on until something ends it
  rm -rf "$dir/run"
  mpi -n 2 $sfsdp train "${small[@]}" --training.steps 100000 --job.dump_folder "$dir/run" "$@" >"$dir/out" 2>&1 &
  launcher=$!
  until_that "step 2" trains
  mapfile -t ranks < <(comm -12 <(pgrep -f "$dir/run" | sort) <(pgrep -x "sfsdp-torch|sfsdp" | sort))
  [[ ${#ranks[@]} -eq 2 ]] || { fail "${#ranks[@]} ranks run"; exit 1; }
}

# A rank is killed: mpirun says so and ends the others.
start --comm.train_timeout_seconds 10
kill -KILL "${ranks[1]}"
begin=$SECONDS
wait $launcher && fail "killed rank: exit code 0"
((SECONDS - begin <= 30)) || fail "killed rank: the run has ended after $((SECONDS - begin)) s"
grep -q "on signal 9 (Killed)" "$dir/out" || fail "killed rank: mpirun does not name the signal"
until_that "all processes are gone" nobody_left

# A rank is stopped: the other one names it (docs/faults.md: 5 s), and mpirun ends the run.
start --comm.train_timeout_seconds 60
kill -STOP "${ranks[1]}"
begin=$SECONDS
named() { grep -qE "no answer from rank [01] .*(no heartbeat|which hosts the store)" "$dir/out"; }
until_that "the stopped rank is named" named
((SECONDS - begin <= 15)) || fail "stopped rank: named after $((SECONDS - begin)) s"
kill -CONT "${ranks[1]}"
wait $launcher && fail "stopped rank: exit code 0"
until_that "all processes are gone" nobody_left

# Without the plug-in a process of mpirun says what is missing, where it would train alone.
mkdir "$dir/bin"
ln build/release/sfsdp build/release/sfsdp-torch "$dir/bin/" 2>/dev/null || cp build/release/sfsdp build/release/sfsdp-torch "$dir/bin/"
mpi -n 2 "$dir/bin/sfsdp" train "${small[@]}" --training.steps 1 --job.dump_folder "$dir/run" >"$dir/out" 2>&1 && fail "no plug-in: exit code 0"
grep -q "libsfsdp_mpi.so is not beside $dir/bin" "$dir/out" || fail "no plug-in: not said"

# mpirun says nothing where another rendezvous is asked for.
WORLD_SIZE=1 RANK=0 MASTER_PORT=29500 mpi -n 2 -x WORLD_SIZE -x RANK -x MASTER_PORT $sfsdp train "${small[@]}" --training.steps 1 \
  --job.dump_folder "$dir/alone" >"$dir/out" 2>&1 || fail "WORLD_SIZE beside mpirun: exit code $?"
exit $failures
