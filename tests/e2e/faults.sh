#!/usr/bin/env bash
# Each fault ends the run soon, with a message that names rank and cause, and leaves no process.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
small=(--job.config_file configs/llama3_debug.toml --training.seq_len 16 --training.local_batch_size 1 --model.args.n_layers 1
  --training.dataset_max_bytes 100000 --comm.init_timeout_seconds 20 --comm.train_timeout_seconds 10
  --job.dump_folder "$dir/run")
failures=0
with_limits=
expect() {  # name, pattern, exit code of the run; output in $dir/out
  if [[ $3 -eq 0 ]]; then echo "$1: exit code 0"; failures=$((failures + 1)); fi
  if ! grep -qE "$2" "$dir/out"; then
    echo "$1: no line matches $2 in:"; tail -20 "$dir/out"; failures=$((failures + 1))
  fi
}

until_that() {  # what is waited for, then a command that says whether it has come
  local what=$1
  shift
  for _ in $(seq 3000); do "$@" && return; sleep 0.1; done
  echo "not within 300 s: $what"; tail -20 "$dir/out"; failures=$((failures + 1))
}
trains() { grep -q "step:  2" "$dir/out"; }
start() { # $@: options; a run that goes on until something ends it, in its second step
  rm -rf "$dir/run"
  : >"$dir/out" # what the last run has written is not this one's
  timeout 400 $sfsdp launch -n 2 -- train "${small[@]}" --training.steps 100000 "$@" >"$dir/out" 2>&1 &
  launcher=$!
  until_that "step 2" trains
}
nobody_left() { ! pgrep -f "$dir/run" >/dev/null; }

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }

# A rank is killed in the middle of training; once while the others' collectives run on threads of their own.
for lanes in threads auto; do
  start --exec.lanes $lanes
  victim=$(pgrep -P "$(pgrep -P $launcher -f 'launch -n 2' | head -1)" | tail -1)
  kill -KILL "$victim"
  wait $launcher
  expect "killed rank, lanes $lanes" "rank [01].*signal 9" $?
  until_that "all processes are gone" nobody_left
done
$sfsdp doctor --flight "$dir/run/comm_traces" >"$dir/out" 2>&1
expect "flight record" "^So: rank [01] holds up 1 rank; read its log" 1
expect "flight record" "^rank [01] left none" 1

# Rank 0 is stopped, and with it the store that the others tell of their failure: they name it first (docs/faults.md: 3 s).
start
kill -STOP "$(pgrep -P "$(pgrep -P $launcher -f 'launch -n 2' | head -1)" | head -1)"
begin=$SECONDS
names_rank_0() { grep -qE "^\[rank1\]: +no answer from rank 0 .* is stopped" "$dir/out"; }
until_that "rank 1 names rank 0" names_rank_0
((SECONDS - begin <= 8)) || { echo "stopped rank 0: named after $((SECONDS - begin)) s"; failures=$((failures + 1)); }
wait $launcher
expect "stopped rank 0" "launch: rank [01] of 2" $?

# A signal to the launcher, then one to a single rank: all ranks stop after the same step.
for target in launcher rank; do
  start
  own=$(pgrep -P $launcher -f 'launch -n 2' | head -1)
  if [[ $target == launcher ]]; then kill -TERM "$own"; else kill -USR1 "$(pgrep -P "$own" | tail -1)"; fi
  wait $launcher
  code=$?
  [[ $target == launcher ]] && expected=143 || expected=138
  expect "signal to a $target" "Stopped by SIG(TERM|USR1) after step [0-9]+" $code
  [[ $code == "$expected" ]] || { echo "signal to a $target: exit code $code, expected $expected"; failures=$((failures + 1)); }
done

# A rank never arrives.
RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) timeout 400 $sfsdp train "${small[@]}" \
  --comm.init_timeout_seconds 2 >"$dir/out" 2>&1
expect "missing rank" "rank 1 never arrived" $?

# The port is in use.
python3 -c 'import socket,time
s=socket.socket(socket.AF_INET6); s.bind(("::",0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(300)' \
  >"$dir/port" &
holder=$!
until_that "a port" test -s "$dir/port"
port=$(<"$dir/port")
RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 400 $sfsdp train "${small[@]}" \
  --comm.init_timeout_seconds 3 >"$dir/out" 2>&1
expect "port in use" "port $port is in use" $?
kill $holder

# Two ranks have different configurations.
port=$(free_port)
RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 400 $sfsdp train "${small[@]}" >"$dir/out" 2>&1 &
first=$!
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 400 $sfsdp train "${small[@]}" \
  --optimizer.lr 0.5 >"$dir/out1" 2>&1
wait $first
expect "different configurations" "rank 0 and rank 1 have different configurations" $?

# Memory cannot be shared with a rank whose addresses or files are limited: the group goes over TCP, which its first rank says, and trains.
losses() { python3 -c 'import json, sys; print([json.loads(line).get("loss") for line in open(sys.argv[1])][1:])' "$dir/run/metrics.jsonl"; }
for limit in "-v 1000000000" "-f 100000000" none; do
  rm -rf "$dir/run"
  port=$(free_port)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 400 $sfsdp train "${small[@]}" --training.steps 3 \
    --metrics.log_freq 1 >"$dir/out" 2>&1 &
  first=$!
  (
    # shellcheck disable=SC2086
    [[ $limit == none ]] || ulimit $limit
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 400 $sfsdp train "${small[@]}" --training.steps 3 \
      --metrics.log_freq 1 >"$dir/out1" 2>&1
  )
  wait $first || { echo "ulimit $limit: exit code $?"; tail -20 "$dir/out"; failures=$((failures + 1)); }
  pattern="^group .* goes over TCP: ranks share no memory \(rank 1: .*\(ulimit ${limit%% *}\)"
  if [[ $limit == none ]]; then ! grep "goes over TCP" "$dir/out"; else grep -qE "$pattern" "$dir/out"; fi ||
    { echo "ulimit $limit: expected $pattern"; tail -20 "$dir/out"; failures=$((failures + 1)); }
  with_limits+="$(losses)"$'\n'
done
[[ $(sort -u <<<"$with_limits" | grep -c .) == 1 && $with_limits == *[0-9]* ]] || { echo "other losses over TCP:"; echo "$with_limits"; failures=$((failures + 1)); }

# The dataset is missing.
timeout 400 $sfsdp train "${small[@]}" --training.dataset tokens --training.dataset_path "$dir/nothing" >"$dir/out" 2>&1
expect "missing dataset" "error on rank 0: .*nothing" $?

# The loss is not a number.
for lanes in auto threads; do
  timeout 400 $sfsdp launch -n 2 -- train "${small[@]}" --optimizer.lr 1e38 --lr_scheduler.warmup_steps 0 \
    --training.steps 20 --exec.lanes $lanes >"$dir/out" 2>&1
  expect "NaN loss, lanes $lanes" "error on rank [01]: the loss is (-?nan|inf)" $?
done

# A rank is stopped while the other one's collectives run on threads of their own, over connections.
start --exec.lanes threads --comm.shared_memory false
kill -STOP "$(pgrep -P "$(pgrep -P $launcher -f 'launch -n 2' | head -1)" | tail -1)"
begin=$SECONDS
wait $launcher
expect "stopped rank, lanes threads" "no answer from rank [01] .* is stopped" $?
((SECONDS - begin <= 30)) || { echo "stopped rank, lanes threads: ended after $((SECONDS - begin)) s"; failures=$((failures + 1)); }
until_that "all processes are gone" nobody_left

# An unknown key.
timeout 400 $sfsdp train "${small[@]}" --training.step 3 >"$dir/out" 2>&1
expect "unknown key" "training.steps" $?
exit $failures
