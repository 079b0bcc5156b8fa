#!/usr/bin/env bash
# What is configured can be printed, saved and run again; traces of executed ops lie where TorchTitan's do; the memory of a
# run is told without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
flags=(--config configs/llama3_debug.toml --training.steps 4 --training.seq_len 32 --model.args.n_layers 2 --metrics.log_freq 1
  --training.dataset_max_bytes 200000 --optimizer.no_decay "*norm*" --optimizer.lr_factors "tok_embeddings.*=0.5,layers.0.*=2"
  --training.local_batch_size 2 --lr_scheduler.total_steps 50)

# prints itself again, notes go to stderr
$sfsdp train "${flags[@]}" --optimizer.momentum 0.5 --print-config >"$dir/printed.toml" 2>"$dir/notes"
grep -q 'optimizer.momentum changes nothing' "$dir/notes"
$sfsdp train --config "$dir/printed.toml" --print-config 2>/dev/null | diff "$dir/printed.toml" -
grep -Eq '^# Configuration [0-9a-f]{16} ' "$dir/printed.toml"

# the printed file trains the same run, on two ranks; with a trace and a saved configuration
$sfsdp launch -n 2 --log-rank 0 -- train "${flags[@]}" --optimizer.momentum 0.5 --job.dump_folder "$dir/one" >/dev/null
$sfsdp launch -n 2 --log-rank 0 -- train --config "$dir/printed.toml" --job.dump_folder "$dir/two" \
  --job.save_config_file saved.toml --profiling.enable_profiling --profiling.profile_freq 2 --profiling.profiler_warmup 1 >"$dir/said"
python3 - "$dir" <<'PY'
import glob, json, os, sys
dir = sys.argv[1]
def losses(name): return [json.loads(line)["loss"] for line in open(f"{dir}/{name}/metrics.jsonl")]
assert losses("one") == losses("two") and len(losses("one")) == 4, (losses("one"), losses("two"))
files = sorted(os.path.relpath(p, dir + "/two") for p in glob.glob(dir + "/two/profile_traces/*/*"))
traces = [f"profile_traces/iteration_{n}/rank{r}_trace.json" for n in (2, 4) for r in (0, 1)]
tables = [f"profile_traces/iteration_4/rank{r}_table.txt" for r in (0, 1)]
assert files == sorted(traces + tables), files
for path in traces:
    rows = json.load(open(f"{dir}/two/{path}"))["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    assert lanes == {0: "compute", 1: "dp_shard", 2: "steps"}, lanes
    events = {lane: [e for e in rows if e["ph"] == "X" and e["tid"] == lane] for lane in lanes}
    (step,) = events[2]
    assert step["name"] == "step " + path.split("_")[2].split("/")[0], step
    assert sum(e["cat"] in ("clip", "opt") and e["name"].endswith(" and 1 more") for e in events[0]) == 5  # clipping and updates of two layers
    assert any(e["name"].startswith("all_gather") for e in events[1])
    waits = [e for e in events[0] if e["name"].startswith("wait for ")]
    assert [(e["ts"], e["dur"]) for e in waits] == [(e["ts"], e["dur"]) for e in events[1]]
    last = step["ts"]
    for e in events[0]:  # one after the other, inside the step
        assert e["ts"] >= last - 0.01 and e["dur"] >= 0, e
        last = e["ts"] + e["dur"]
    assert last <= step["ts"] + step["dur"] + 0.01
    assert any(e["args"]["module"].startswith("layers.1.") for e in events[0])
for rank, path in enumerate(tables):
    lines = open(f"{dir}/two/{path}").read().splitlines()
    assert lines[0].startswith(f"Profile of rank {rank}, the mean of steps 2, 4: "), lines[0]
    kinds = {line[:24].strip() for line in lines[2:]}
    names = ["products", "attention", "optimizer", "communication, exposed", "communication, hidden", "rest"]
    assert kinds.issuperset(names), kinds
    shares = [float(line[34:43].split("%")[0]) for line in lines[2 : [k.startswith("rest") for k in lines].index(True) + 1]]
    assert abs(sum(shares) - 100) < 1, lines
said = open(f"{dir}/said").read().replace("[rank0]: ", "")
assert open(f"{dir}/two/{tables[0]}").read() in said, said
PY
$sfsdp train --config "$dir/two/saved.toml" --print-config 2>/dev/null | diff "$dir/two/saved.toml" -

# memory_estimation starts nothing: no rank 1 to 255 is there
RANK=0 WORLD_SIZE=256 $sfsdp train --config configs/llama3_8b.toml --memory_estimation.enable >"$dir/memory"
grep -Eq '^Memory of each of 256 ranks, mesh \[dp_shard=256\]: planned peak [0-9.]+ GiB$' "$dir/memory" || { cat "$dir/memory"; exit 1; }
grep -q '  parameters 119.6[67] MiB, optimizer and buffers 239.3' "$dir/memory" || { cat "$dir/memory"; exit 1; } # 8,030,261,248 * 4 / 256 bytes
