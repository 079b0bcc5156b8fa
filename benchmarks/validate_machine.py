#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares step time and peak memory on this machine with what is predicted of them.

  benchmarks/validate_machine.py [--rounds 5] [--ranks 1,2,4] [--seconds 8] [--only WORD]

A round is one `sfsdp calibrate`: sweeps over the step's kernels, its collectives and the step itself, all of which meet
the same states of the machine, which changes its speed within seconds. Predicted is that step from the file that is
written. The medians of the rounds are compared; `least` and `most` are the errors of single rounds.
"""
import argparse, os, re, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = f"{ROOT}/configs/llama3_debug.toml"
WIDE = ["--model.args.dim", "512", "--model.args.n_layers", "2"]
CASES = {
    "debug model": [],
    "the same, batch 2": ["--training.local_batch_size", "2"],
    "the same, full recomputation": ["--activation_checkpoint.mode", "full"],
    "512 wide, 2 layers": WIDE,
}
STEP = re.compile(r"predicted ([\d.,]+) ms, took ([\d.,]+) ms .* predicted ([\d.,]+) MiB, needed ([\d.,]+) MiB")


def calibrate(options, ranks, flags, folder):
    command = [options.sfsdp, "calibrate", "--config", CONFIG, "--ranks", str(ranks), "--out", f"{folder}/machine.toml",
               "--calibrate.seconds", str(options.seconds), "--calibrate.max_mib", "16",
               "--training.global_batch_size", "-1", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    found = STEP.search(done.stdout)
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return [float(figure.replace(",", "")) for figure in found.groups()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=8, help="for the step's sweeps, and for other sizes")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    options = parser.parse_args()
    error = lambda predicted, actual: f"{100 * (predicted / actual - 1):+.1f} %"
    print("| model | ranks | predicted | took | error | least, most | peak predicted | needed | error |\n"
          "|---|---|---|---|---|---|---|---|---|", flush=True)
    for ranks in map(int, options.ranks.split(",")):
        rounds = {name: [] for name in CASES if options.only in name}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                for name, figures in rounds.items():
                    figures.append(calibrate(options, ranks, CASES[name], folder))
        for name, figures in rounds.items():
            predicted, took, peak, needed = map(statistics.median, zip(*figures))
            single = sorted(f[0] / f[1] for f in figures)
            print(f"| {name} | {ranks} | {predicted:.0f} ms | {took:.0f} ms | {error(predicted, took)} | "
                  f"{error(single[0], 1)}, {error(single[-1], 1)} | {peak:.2f} MiB | {needed:.2f} MiB | "
                  f"{100 * (peak / needed - 1):+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
