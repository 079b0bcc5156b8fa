#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares step time and peak memory on this machine with what is predicted of them.

  benchmarks/validate_machine.py [--rounds 5] [--ranks 1,2,4] [--seconds 8] [--only WORD] [--patience 60] [--executor planned]

With --executor reference a round is one `sfsdp calibrate`: sweeps over the step's kernels, its collectives and the step itself, all of which meet
the same states of the machine, which changes its speed within seconds. Predicted is that step from the file that is
written. Printed are the medians of the rounds; the error of a step's time is the median of the rounds' errors, as only
what one round measured met the same machine. With the planned executor steps that are measured kernel by kernel take turns with
steps that are not, which are what is predicted; the peak is the plan's. `least` and `most` are the extremes. A round waits until other programs, and
other machines on the same host, leave the processors alone, and is repeated where they came back meanwhile, until
--patience is over; of its tries the least disturbed counts. `others` is their share of all processors in the rounds.
"""
import argparse, math, os, re, resource, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = f"{ROOT}/configs/llama3_debug.toml"
CASES = {
    "debug model": [],
    "the same, batch 2": ["--training.local_batch_size", "2"],
    "the same, full remat": ["--activation_checkpoint.mode", "full"],
    "512 wide, 2 layers": ["--model.args.dim", "512", "--model.args.n_layers", "2"],
    "bfloat16": ["--training.mixed_precision_param", "bfloat16"],
    "4 micro-batches": ["--training.local_batch_size", "1", "--training.global_batch_size", "8"],
    "length 512": ["--training.seq_len", "512"],
    "DDP": ["--parallelism.data_parallel_replicate_degree", "2"],
    "ZeRO 2": ["--parallelism.fsdp_reshard_after_forward", "never"],
    "GPT-2, 2 layers": ["--model.name", "gpt", "--model.flavor", "124M", "--model.args.n_layers", "2"],
}
STEP = re.compile(r"predicted ([\d.,]+) ms, took ([\d.,]+) ms .*(?:peak predicted|planned peak) ([\d.,]+) MiB(?:, needed ([\d.,]+) MiB)?")


class Others:
    """The share of all processors that others than this program's children have had since it was made."""

    def __init__(self):
        self.start, self.busy, self.own = time.monotonic(), self.busy_seconds(), self.own_seconds()

    @staticmethod
    def busy_seconds():
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own_seconds():
        return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF,
                                                                             resource.RUSAGE_CHILDREN)))

    def share(self):
        used = self.busy_seconds() - self.busy - (self.own_seconds() - self.own)
        return max(0.0, used / (time.monotonic() - self.start) / os.cpu_count())


def wait_for_quiet(deadline):
    while time.monotonic() < deadline:
        others = Others()
        time.sleep(1)
        if others.share() < 0.03:
            return


def calibrate(options, ranks, flags, folder):
    command = [options.sfsdp, "calibrate", "--config", CONFIG, "--ranks", str(ranks), "--out", f"{folder}/machine.toml",
               "--calibrate.seconds", str(options.seconds), "--calibrate.max_mib", "16", "--exec.executor", options.executor,
               "--training.global_batch_size", "-1", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    found = STEP.search(done.stdout)
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return [float(figure.replace(",", "")) if figure else math.nan for figure in found.groups()]


def one_round(options, ranks, flags, folder):
    deadline = time.monotonic() + options.patience
    best = None
    while best is None or (best[-1] > 0.03 and time.monotonic() < deadline):
        wait_for_quiet(deadline)
        others = Others()
        figures = calibrate(options, ranks, flags, folder)
        figures.append(others.share())
        if best is None or figures[-1] < best[-1]:
            best = figures
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=8, help="for the step's sweeps, and for other sizes")
    parser.add_argument("--patience", type=float, default=60, help="seconds to try for an undisturbed round")
    parser.add_argument("--executor", default="planned", choices=("planned", "reference"))
    parser.add_argument("--only", default="", help="models whose name holds this word")
    options = parser.parse_args()
    error = lambda predicted, actual: f"{100 * (predicted / actual - 1):+.1f} %"
    print("| model | ranks | predicted | took | error | least, most | peak predicted | needed | error | others |\n"
          "|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for ranks in map(int, options.ranks.split(",")):
        rounds = {name: [] for name in CASES if options.only in name}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                for name, figures in rounds.items():
                    figures.append(one_round(options, ranks, CASES[name], folder))
        for name, figures in rounds.items():
            predicted, took, peak, needed, _ = map(statistics.median, zip(*figures))
            shares = [100 * f[-1] for f in figures]
            single = sorted(f[0] / f[1] for f in figures)
            print(f"| {name} | {ranks} | {predicted:.0f} ms | {took:.0f} ms | {error(statistics.median(single), 1)} | "
                  f"{error(single[0], 1)}, {error(single[-1], 1)} | {peak:.2f} MiB | "
                  f"{'the plan | | ' if math.isnan(needed) else f'{needed:.2f} MiB | {100 * (peak / needed - 1):+.2f} % | '}{min(shares):.0f}–{max(shares):.0f} % |", flush=True)


if __name__ == "__main__":
    main()
