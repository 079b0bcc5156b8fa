#!/usr/bin/env bash
# Two ranks train with metrics.save_for_all_ranks; the tensorboard package reads their files: the numbers are those of
# metrics.jsonl, for each tag of TorchTitan's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
build/release/sfsdp launch -n 2 --log-rank 0 -- train --config configs/llama3_debug.toml --training.steps 7 --training.seq_len 32 \
  --model.args.n_layers 1 --metrics.log_freq 3 --metrics.enable_tensorboard --metrics.save_for_all_ranks \
  --metrics.save_tb_folder events --validation.enable --validation.dataset libtorch_headers --validation.seq_len 32 \
  --validation.local_batch_size 1 --validation.steps 1 --validation.freq 3 --job.dump_folder "$dir" >"$dir/out" 2>&1 ||
  fail "$(cat "$dir/out")"
folders=("$dir"/events/*/rank_[01])
((${#folders[@]} == 2)) || fail "expected folders rank_0 and rank_1 of one minute: $(find "$dir/events")"

for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import tensorboard' 2>/dev/null && python=$candidate && break
done
[[ -n ${python:-} ]] || { echo "SKIP: no tensorboard package here, so the files were written but not read back; pip install tensorboard"; exit 77; }
"$python" - "$dir" "${folders[@]}" <<'PY' 2>"$dir/err" || fail "$(cat "$dir/err")"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
lines = [json.loads(line) for line in open(f"{sys.argv[1]}/metrics.jsonl")]
run = json.loads(open(f"{sys.argv[1]}/run.jsonl").readline())
steps = {line["step"]: line for line in lines if "loss" in line}
validations = {line["step"]: line for line in lines if "validation_loss" in line}
reported = [1, 3, 6]
assert sorted(steps) == list(range(1, 8)), steps
for rank, folder in enumerate(sys.argv[2:]):
    events = EventAccumulator(folder).Reload()
    read = {tag: {s.step: s.value for s in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    expected = {f"memory/max_{kind}({unit})" for kind in ("active", "reserved") for unit in ("GiB", "%")} | {
        "loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "throughput(tps)", "tflops", "mfu(%)",
        "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)", "time_metrics/data_loading(%)",
        "memory/num_alloc_retries", "memory/num_ooms", "n_tokens_seen", "lr"}
    assert expected <= set(read), expected - set(read)
    for tag in expected:
        assert sorted(read[tag]) == reported, (tag, read[tag])
    close = lambda a, b: abs(a - b) <= 1e-6 * abs(b)
    for step in reported:
        for tag, field in (("loss_metrics/global_avg_loss", "loss"), ("loss_metrics/global_max_loss", "max_loss"),
                           ("grad_norm", "grad_norm"), ("lr", "lr"), ("n_tokens_seen", "tokens")):
            assert close(read[tag][step], steps[step][field]), (tag, step, read[tag][step], steps[step][field])
    loss = read["validation_metrics/loss"]
    assert sorted(loss) == sorted(validations) and loss, (loss, validations)
    for step in loss:
        assert close(loss[step], validations[step]["validation_loss"]), step
    first = steps[1]
    # What is of all steps since the line before; 1e-5: two of these numbers have been rounded to 32 bits.
    near = lambda a, b: abs(a - b) <= 1e-5 * abs(b)
    for step in reported:
        value = {tag: read[tag][step] for tag in read if step in read[tag]}
        assert value["memory/num_alloc_retries"] == value["memory/num_ooms"] == 0
        for unit in ("GiB", "%"):
            assert value[f"memory/max_reserved({unit})"] == value[f"memory/max_active({unit})"], (step, unit)
        assert near(value["memory/max_active(%)"], 100 * value["memory/max_active(GiB)"] * 2**30 / run["device_bytes"])
        assert near(value["tflops"], value["throughput(tps)"] * run["flops_per_token"] / 1e12), step
        seconds = value["time_metrics/end_to_end(s)"]
        assert near(value["throughput(tps)"], run["tokens_per_step"] / seconds / run["data_ranks"]), step
        assert near(value["time_metrics/data_loading(%)"], 100 * value["time_metrics/data_loading(s)"] / seconds), step
        if rank == 0:  # metrics.jsonl has its times and its memory
            interval = [steps[k] for k in range(max([0] + [r for r in reported if r < step]) + 1, step + 1)]
            assert near(value["mfu(%)"], 100 * value["tflops"] * 1e12 / run["peak_flops"]), step
            assert close(value["memory/max_active(GiB)"], max(row["memory_gib"] for row in interval)), step
            assert close(value["time_metrics/data_loading(s)"], sum(row["data_s"] for row in interval) / len(interval)), step
            for tag in ("forward_backward", "optimizer"):
                assert close(value[f"time_metrics/{tag}(s)"], steps[step][f"{tag}_s"]), (step, tag)
            assert close(value["time_metrics/exposed_communication(s)"], steps[step]["comm_exposed_s"]), step
assert first["max_loss"] >= first["loss"]
PY
