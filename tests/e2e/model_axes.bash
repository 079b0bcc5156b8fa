# shellcheck shell=bash
# What the scripts of model axes share: runs of the debug model by processes that have the same samples. Sourced by those that set
#   sfsdp, dir   the program, a folder of the script's own
#   common       the flags of all runs; axis: those of the axis
run() { # $1: ranks, $2: name, then flags
  local ranks=$1 name=$2
  shift 2
  $sfsdp launch -n "$ranks" --log-rank 0 -- "${common[@]}" --training.steps 4 --job.dump_folder "$dir/$name" "$@" # the last flag of a name holds
}

# Two steps by two ranks of the axis, which one process goes on from, and two of data parallelism from its checkpoint: run "moved".
move_between_meshes() { # $1: local_batch_size of the first
  local saved=(--lr_scheduler.total_steps 4 --checkpoint.enable --checkpoint.interval 1 --checkpoint.no_last_save_model_only)
  run 2 moved "${axis[@]}" --training.local_batch_size "$1" "${saved[@]}" --training.steps 2
  $sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/moved" "${saved[@]}" --training.steps 3
  run 2 moved --training.local_batch_size 2 "${saved[@]}"
}

# These runs have the losses and norms of the run "one"; the first two, over shared memory and over sockets, each other's bits.
expect_losses_of_one() { # names
  python3 - "$dir" "$@" <<'PY'
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
one = rows("one")
assert len(one) == 4
for name in sys.argv[2:]:
    for a, b in zip(one, rows(name), strict=True):
        assert a["lr"] == b["lr"] and a["tokens"] == b["tokens"], (name, a, b)
        assert abs(a["loss"] - b["loss"]) <= 1e-6 * a["loss"], (name, a, b)
        assert abs(a["grad_norm"] - b["grad_norm"]) <= 5e-6 * a["grad_norm"], (name, a, b)
for a, b in zip(rows(sys.argv[2]), rows(sys.argv[3]), strict=True):  # sums are in the order of the ranks, whatever carries them
    assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
PY
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
