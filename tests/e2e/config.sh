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
  --job.save_config_file saved.toml --profiling.enable_profiling --profiling.profile_freq 2 --profiling.profiler_warmup 1 >/dev/null
python3 - "$dir" <<'PY'
import glob, json, os, sys
dir = sys.argv[1]
def losses(name): return [json.loads(line)["loss"] for line in open(f"{dir}/{name}/metrics.jsonl")]
assert losses("one") == losses("two") and len(losses("one")) == 4, (losses("one"), losses("two"))
traces = sorted(os.path.relpath(p, dir + "/two") for p in glob.glob(dir + "/two/profile_traces/*/*"))
assert traces == [f"profile_traces/iteration_{n}/rank{r}_trace.json" for n in (2, 4) for r in (0, 1)], traces
for path in traces:
    events = [e for e in json.load(open(f"{dir}/two/{path}"))["traceEvents"] if e["ph"] == "X"]
    steps, ops = [e for e in events if e["tid"] == 0], [e for e in events if e["tid"] > 0]
    assert len(steps) == 1 and steps[0]["name"] == "step " + path.split("_")[2].split("/")[0], steps
    assert sum(e["name"] == "adamw" for e in ops) >= 3
    assert any(e["tid"] == 2 and e["name"].startswith("all_gather") for e in ops)
    assert all(e["dur"] >= 0 for e in events)
    last = steps[0]["ts"]
    for e in ops:  # one after the other, inside the step
        assert e["ts"] >= last - 0.01, e
        last = e["ts"] + e["dur"]
    assert last <= steps[0]["ts"] + steps[0]["dur"] + 0.01
    assert any(e["args"]["module"].startswith("layers.1.") for e in ops)
PY
$sfsdp train --config "$dir/two/saved.toml" --print-config 2>/dev/null | diff "$dir/two/saved.toml" -

# memory_estimation starts nothing: no rank 1 to 255 is there
RANK=0 WORLD_SIZE=256 $sfsdp train --config configs/llama3_8b.toml --memory_estimation.enable >"$dir/memory"
grep -Eq '^Memory of each of 256 ranks, mesh \[dp_shard=256\]: planned peak [0-9.]+ GiB$' "$dir/memory" || { cat "$dir/memory"; exit 1; }
grep -q '  parameters 119.6[67] MiB, optimizer and buffers 239.3' "$dir/memory" || { cat "$dir/memory"; exit 1; } # 8,030,261,248 * 4 / 256 bytes
