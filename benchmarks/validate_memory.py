#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the planned peak memory of training on CPU ranks with what LibTorch's allocator gives out.

  benchmarks/validate_memory.py [--sfsdp build/release/sfsdp] [--only WORD]

Models, ranks 1 to 4, micro-batches 1 and 4, remat none and full, and of two ranks with micro-batches also mixed
precision and bfloat16 throughout. The last line has the largest error. Each row trains three steps. Planned is what the banner says: state and live bytes of the plan for the reference executor,
which the simulator uses on machines/cpu_local.toml too. Measured is the most that rank 0 holds in any of the steps; it
is the rank with the largest shards.
"""
import argparse, json, os, re, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {
    "llama3 debugmodel": [],
    "gpt, 4 layers of 256": ["--model.name", "gpt", "--model.flavor", "124M", "--model.args.dim", "256", "--model.args.n_layers",
                             "4", "--model.args.n_heads", "4", "--model.args.max_positions", "128"],
}
PLANNED = re.compile(r"planned peak ([\d.]+) (\w+)")
MIB = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}


def train(sfsdp, ranks, flags):
    with tempfile.TemporaryDirectory() as folder:
        command = [sfsdp, "launch", "-n", str(ranks), "--log-rank", "0", "--", "train", "--job.config_file",
                   f"{ROOT}/configs/llama3_debug.toml", "--training.steps", "3", "--job.dump_folder", folder, "--exec.executor", "reference",
                   *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        with open(f"{folder}/metrics.jsonl") as file:
            measured = max(json.loads(line)["memory_gib"] for line in file) * 1024
    figure, unit = PLANNED.search(done.stdout).groups()
    return float(figure) * MIB[unit], measured


def rows():
    """Ranks, micro-batches, remat, precision: a name and flags."""
    plain, mixed = ("float32", []), ("mixed", ["--training.mixed_precision_param", "bfloat16"])
    bf16 = ("bfloat16", ["--training.dtype", "bfloat16"])
    for ranks in (1, 2, 4):
        for micro_batches in (1, 4):
            for remat in ("none", "full"):
                yield ranks, micro_batches, remat, plain
    yield 3, 4, "none", plain
    for precision in (mixed, bf16):
        for micro_batches in (1, 4):
            yield 2, micro_batches, "none", precision


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    options = parser.parse_args()
    print("| model | ranks | micro-batches | remat | precision | planned | measured | error |\n|---|---|---|---|---|---|---|---|")
    worst = 0
    for model, flags in MODELS.items():
        if options.only not in model:
            continue
        for ranks, micro_batches, remat, (precision, dtypes) in rows():
            planned, measured = train(options.sfsdp, ranks, flags + dtypes + [
                "--training.global_batch_size", str(4 * ranks * micro_batches), "--activation_checkpoint.mode", remat])
            error = 100 * (planned / measured - 1)
            worst = max(worst, abs(error))
            print(f"| {model} | {ranks} | {micro_batches} | {remat} | {precision} | {planned:.2f} MiB | {measured:.2f} MiB | "
                  f"{error:+.1f} % |", flush=True)
    print(f"largest error: {worst:.2f} %")


if __name__ == "__main__":
    main()
