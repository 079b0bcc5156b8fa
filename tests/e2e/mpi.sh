#!/usr/bin/env bash
# Ranks that mpirun starts: the suite of all communicators, training with the bits of sfsdp launch, and its faults.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# ./setup.sh --tests brings both packages where it can: with them there is nothing to skip.
skip() {
  local installed
  installed=$(dpkg-query -W -f '${Status}\n' libopenmpi-dev openmpi-bin 2>/dev/null | grep -cx "install ok installed")
  [[ $installed -eq 2 ]] && { echo "failed: $1, though libopenmpi-dev and openmpi-bin are installed"; exit 1; }
  echo "skipped: $1"
  exit 77
}
[[ -e build/release/libsfsdp_mpi.so ]] ||
  skip "build/release/libsfsdp_mpi.so is not built, as MPI's C headers were not found (libopenmpi-dev)"
mpirun --version 2>/dev/null | grep -q "Open MPI" || skip "no mpirun of Open MPI on this machine"
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
  [[ $(grep -c "test cases: *8 |.* 8 passed" "$dir/out") -eq $n ]] || fail "suite on $n ranks: not 8 passed on each"
done
# Without shared memory between ranks, as across hosts.
over_tcp() { timeout 400 mpirun --oversubscribe --mca btl self,tcp --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo "$@"; }
over_tcp -n 2 build/release/core_tests --no-colors=true --no-skip -tc="mpi ranks:*" >"$dir/out" 2>&1 || fail "suite over MPI's tcp: exit code $?"

# A rank that is stopped in the middle of a large message, which MPI does not take back: the other one names it, and ends.
until_that() {
  local what=$1
  shift
  for _ in $(seq 1200); do "$@" && return; sleep 0.1; done
  fail "not within 120 s: $what"
}
over_tcp -n 2 build/release/core_tests --no-colors=true --no-skip -tc="mpi process: large messages*" >"$dir/out" 2>&1 &
launcher=$!
both_send() { [[ $(grep -c "^rank [01] sends" "$dir/out") -eq 2 ]]; }
until_that "both ranks send" both_send
below() { local child; for child in $(pgrep -P "$1"); do echo "$child"; below "$child"; done; }
victim=$(for pid in $(below $launcher); do tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK=1 && echo "$pid"; done)
kill -STOP $victim
begin=$SECONDS
wait $launcher
launcher=
((SECONDS - begin <= 20)) || fail "rank stopped in a message: the run has ended after $((SECONDS - begin)) s"
grep -q "all_gather %large over dp_shard" "$dir/out" || fail "rank stopped in a message: not said in which call"
grep -qE "no answer from rank 1 .*no heartbeat" "$dir/out" || fail "rank stopped in a message: not named"

# A program that has begun MPI itself goes on using it after sfsdp; one that lets a single thread call MPI is refused.
cat >"$dir/own.cc" <<'CC'
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

#include "sfsdp/comm/mpi/mpi_functions.h"

int main(int argc, char** argv) {
  int level = 0, sum = 1;
  MPI_Init_thread(nullptr, nullptr, argc > 2 ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  const auto find = reinterpret_cast<decltype(&sfsdp_mpi_functions)>(dlsym(library, "sfsdp_mpi_functions"));
  const SfsdpMpiFunctions* functions = find(kSfsdpMpiAbi);
  SfsdpMpiStarted started{};
  int error = functions->start(&started);
  error += functions->stop();
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("rank %d of %d, %d here: error %d, threads %d, sum %d\n", started.rank, started.world_size, started.local_ranks, error,
              started.threads, sum);
  return MPI_Finalize();
}
CC
mpicxx -std=c++20 -I. -o "$dir/own" "$dir/own.cc" -ldl >"$dir/out" 2>&1 || fail "a program with MPI of its own is not built"
mpi -n 2 "$dir/own" "$PWD/build/release/libsfsdp_mpi.so" >"$dir/out" 2>&1 || fail "a program with MPI of its own: exit code $?"
[[ $(grep -c "of 2, 2 here: error 0, threads 2, sum 2" "$dir/out") -eq 2 ]] || fail "a program with MPI of its own"
mpi -n 2 "$dir/own" "$PWD/build/release/libsfsdp_mpi.so" single >"$dir/out" 2>&1 || fail "MPI for one thread: exit code $?"
[[ $(grep -c "of 2, 2 here: error 0, threads 0, sum 2" "$dir/out") -eq 2 ]] || fail "MPI for one thread"

small=(--job.config_file configs/llama3_debug.toml --training.seq_len 32 --training.local_batch_size 2 --model.args.n_layers 2
  --training.dataset_max_bytes 200000)
$sfsdp launch -n 2 -- train "${small[@]}" --training.steps 3 --job.dump_folder "$dir/launch" >"$dir/out" 2>&1 || fail "launch"
mpi -n 2 $sfsdp train "${small[@]}" --training.steps 3 --job.dump_folder "$dir/mpi" >"$dir/out" 2>&1 || fail "mpirun: exit code $?"
mpi -n 2 $sfsdp train "${small[@]}" --training.steps 3 --job.dump_folder "$dir/lanes" --exec.lanes threads >"$dir/out" 2>&1 ||
  fail "mpirun with threads for lanes: exit code $?"
python3 - "$dir" <<'PY' || fail "losses differ"
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
for name in ("mpi", "lanes"):
    for a, b in zip(rows("launch"), rows(name), strict=True):
        assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (name, a, b)
assert len(rows("mpi")) == 3
PY
# Ranks share the cores that they may use, unless the user says otherwise; bound to one core, each has that.
threads=${OMP_NUM_THREADS:-1}
unset OMP_NUM_THREADS # which nproc counts by, too
cores=$(nproc)
share=$((cores < 2 ? 1 : cores / 2))
one_step() { mpi -n 2 "$@" $sfsdp train "${small[@]}" --training.steps 1 --job.dump_folder "$dir/threads" >"$dir/out" 2>&1 || fail "mpirun $*: exit code $?"; }
one_step --bind-to none
grep -q "2 ranks share $cores cores of this host: $share computing on each" "$dir/out" || fail "ranks do not share $cores cores"
if ((cores > 1)); then
  one_step --use-hwthread-cpus --map-by hwthread --bind-to hwthread
  grep -q "2 ranks share 2 cores of this host: 1 computing on each" "$dir/out" || fail "ranks on a core each do not compute with one thread"
fi
export OMP_NUM_THREADS=$threads
one_step --bind-to none
grep -q "ranks share" "$dir/out" && fail "OMP_NUM_THREADS is not kept"

trains() { grep -q "step:  2" "$dir/out"; }
nobody_left() { ! pgrep -f "$dir/run" >/dev/null; }
start() { # $@: options; a run that goes on until something ends it
  rm -rf "$dir/run"
  : >"$dir/out" # what the last run has written is not this one's
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
