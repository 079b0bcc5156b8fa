#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What asynchronous saves cost the steps that run beside them, against one copy of the rank's state.

  benchmarks/async_save.py FOLDER [--saves 12] [--interval 12] [--ranks 1] [-- flags of train]

FOLDER is on the disk to be measured. A run with a save every `interval` steps; a step lasts step_time_s and between_s. The
last third of the steps between two saves is what a step takes without a save; a save that went on into it is left out, and
counted. The cost of a save: what all steps up to the next one lasted more than that. The copy is memmove of as many bytes as
rank 0 saves, in a process of its own after the run. Medians over saves, as other programs may stop any one.
"""
import argparse, ctypes, json, os, re, statistics, subprocess, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = ["--training.seq_len", "64", "--training.local_batch_size", "2", "--model.args.dim", "512", "--model.args.n_layers", "6"]


def copy_seconds(size):
    source, target = ctypes.create_string_buffer(b"x", size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memset(target, 1, size)
    seconds = []
    for _ in range(9):
        begin = time.perf_counter()
        ctypes.memmove(target, source, size)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def spread(values):
    return f"{statistics.median(values) * 1e3:.1f} ms ({min(values) * 1e3:.1f} to {max(values) * 1e3:.1f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--interval", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        steps = (args.saves + 2) * args.interval - 1
        train = ["train", "--config", f"{ROOT}/configs/llama3_debug.toml", *MODEL, "--training.steps", str(steps),
                 "--metrics.log_freq", "1", "--job.dump_folder", folder, "--checkpoint.enable", "--checkpoint.interval",
                 str(args.interval), "--checkpoint.keep_latest_k", "2", "--checkpoint.async_mode", "async", *args.flags]
        launch = ["launch", "-n", str(args.ranks), "--log-rank", "0", "--"] if args.ranks > 1 else []
        log = subprocess.run([f"{ROOT}/build/release/sfsdp", *launch, *train], check=True, capture_output=True, text=True,
                             env={"OMP_NUM_THREADS": "1", **os.environ}).stdout
        with open(f"{folder}/metrics.jsonl") as file:
            lasted = {s["step"]: s["step_time_s"] + s["between_s"] for s in map(json.loads, file)}
        size = max(os.path.getsize(f"{folder}/checkpoint/{name}/rank-00000.safetensors")
                   for name in os.listdir(f"{folder}/checkpoint") if re.fullmatch(r"step-\d+", name))
    saves = [(int(s), float(t), float(stall) / 1e3)
             for s, t, stall in re.findall(r"step-(\d+): [\d.,]+ MiB in ([\d.]+) s, of which ([\d.,]+) ms", log)]
    cost, waited, late = [], [], 0
    for step, seconds, stall in saves[1:]:  # the first one's buffer is fresh memory
        after = [lasted.get(k) for k in range(step, step + args.interval)]
        if None in after:
            continue
        quiet = statistics.median(after[-(args.interval // 3):])
        if seconds > sum(after[:-(args.interval // 3)]):
            late += 1
            continue
        cost.append(sum(after) - args.interval * quiet)
        waited.append(stall)
    if not cost:
        raise SystemExit(f"all {late} saves went on into the last third of their steps: a larger --interval")
    copy = copy_seconds(size)
    print(f"{size / 2**20:.0f} MiB a rank, {args.ranks} ranks, {len(cost)} saves of {statistics.median(t for _, t, _ in saves):.2f} s ({late} left out), "
          f"a step {statistics.median(lasted.values()) * 1e3:.0f} ms, load {os.getloadavg()[0]:.1f}")
    print(f"  one copy of the state        {copy * 1e3:.1f} ms")
    print(f"  a step waits for a save      {spread(waited)}: {statistics.median(waited) / copy:.2f} x one copy")
    print(f"  all steps last longer by     {spread(cost)}: {statistics.median(cost) / copy:.2f} x one copy")


if __name__ == "__main__":
    main()
