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

# One rank is killed, or stops: a rank that lives says which one, and in which collective it waited for it. No process stays.
fault() { # $1: signal, $2: ranks, $3: which one of them, $4: name, then flags
  local signal=$1 ranks=$2 victim=$3 name=fault-$4-$1
  shift 4
  $sfsdp launch -n "$ranks" -- "${common[@]}" --training.steps 100000 --training.local_batch_size 4 --comm.train_timeout_seconds 5 \
    --job.dump_folder "$dir/$name" "$@" >"$dir/$name.log" 2>&1 &
  local launcher=$! process
  for _ in $(seq 600); do
    [[ -e $dir/$name/metrics.jsonl && $(wc -l <"$dir/$name/metrics.jsonl") -ge 3 ]] && break
    sleep 0.2
  done
  process=$(pgrep -P "$launcher" | sort -n | sed -n "$((victim + 1))p") # the launcher starts them in the order of the ranks
  kill -"$signal" "$process"
  if wait "$launcher"; then echo "$name: a run without rank $victim ended well"; exit 1; fi
  if pgrep -f "$dir/$name" >&2; then echo "$name: processes are left"; exit 1; fi
  expect_report "$dir/$name.log" "$victim" "$process" "$signal"
}

# The launcher's words are no proof: it sees a process that a signal ended, whatever the others did. Nor is what a stopped rank says once
# it is woken to end.
expect_report() { # $1: log, $2: the rank, $3: its process, $4: signal
  python3 - "$@" <<'PY'
import re, sys
log, victim, process, signal = sys.argv[1:]
text = open(log).read()
lines = {}  # of each rank
for line in text.splitlines():
    if found := re.match(r"\[rank(\d+)\]: (.*)", line):
        lines.setdefault(found[1], []).append(found[2])
waits = (r"error on rank {0}: CommError on rank {0} of \d+: "
         r"(all_gather|reduce_scatter|all_reduce|all_to_all_v|all_to_all|permute|broadcast)\b.* over [a-z_+, ]+, sequence \d+")
state = "is gone" if signal == "KILL" else "is stopped"
names = rf" *no answer from rank {victim} in \d+ ms: its process {process} {state}"
reports = [rank for rank, said in lines.items() if rank != victim and any(
    re.match(waits.format(rank), a) and re.match(names, b) for a, b in zip(said, said[1:]))]
if not reports:
    sys.exit(f"{text}\n{log}: no rank but {victim} says which collective it waited in for rank {victim}, whose process {process} {state}")
PY
}
