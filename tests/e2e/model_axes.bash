# shellcheck shell=bash
# What the scripts of model axes share: runs of the debug model by processes that have the same samples. Sourced by those that set
#   sfsdp, dir   the program, a folder of the script's own
#   common       the flags of all runs; axis: those of the axis
run() { # $1: ranks, $2: name, then flags
  local ranks=$1 name=$2
  shift 2
  $sfsdp launch -n "$ranks" --log-rank 0 -- "${common[@]}" --training.steps 4 --job.dump_folder "$dir/$name" "$@" # the last flag of a name holds
}

# A run of two that is refused with this text.
expect() { # $1: in the message, then flags
  local what=$1 out
  shift
  if out=$($sfsdp launch -n 2 --log-rank 0 -- "${common[@]}" --training.steps 1 --job.dump_folder "$dir/wrong" "$@" 2>&1); then
    echo "not refused: $*"
    exit 1
  fi
  grep -qF -- "$what" <<<"$out" || { echo "expected: $what"; echo "$out"; exit 1; }
}

# One rank of two is killed, or stops: the other one says which, and in which collective.
fault() { # $1: signal
  $sfsdp launch -n 2 -- "${common[@]}" "${axis[@]}" --training.steps 100000 --training.local_batch_size 4 --comm.train_timeout_seconds 5 \
    --job.dump_folder "$dir/fault$1" >"$dir/fault$1.log" 2>&1 &
  local launcher=$! rank1=
  for _ in $(seq 300); do
    [[ -e $dir/fault$1/metrics.jsonl && $(wc -l <"$dir/fault$1/metrics.jsonl") -ge 3 ]] && break
    sleep 0.2
  done
  rank1=$(pgrep -P "$launcher" | tail -1)
  kill -"$1" "$rank1"
  if wait "$launcher"; then echo "a run without rank 1 ended well"; exit 1; fi
  kill -KILL "$rank1" 2>/dev/null || true
  grep -Eq "rank 1" "$dir/fault$1.log" || { cat "$dir/fault$1.log"; exit 1; }
  grep -Eq "(all_gather|reduce_scatter|all_reduce) .+ over [a-z_]+, sequence|ended by SIGKILL" "$dir/fault$1.log" || { cat "$dir/fault$1.log"; exit 1; }
}
