#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Calibrates on this machine, trains on it, and compares step time and peak memory with what `sfsdp simulate` predicts.

  benchmarks/validate_machine.py [--rounds 5] [--ranks 1,2,4] [--steps 12] [--only WORD] [--patience 60]

A round calibrates and then trains, so that both meet the same state of the machine; the medians of all rounds are
compared. Other programs slow some steps down, and calibration keeps the 10th percentile of its samples: `fast` is the
10th percentile of a run's steps, `middle` their median, which also holds the disturbance. `batch 2` is predicted from
the calibration of the same model with batch 4: no product in it was measured at that size.

A round waits until the other programs leave the processors alone, and is repeated where they came back meanwhile, until
--patience is over; of its tries the least disturbed counts. `others` is their share of all processors in the rounds.
"""
import argparse, json, os, resource, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CONFIG = f"{ROOT}/configs/llama3_debug.toml"
WIDE = ["--model.args.dim", "512", "--model.args.n_layers", "2"]
CASES = [  # name, what is calibrated, what is trained beyond that
    ("debug model", [], []),
    ("debug model, batch 2", [], ["--training.local_batch_size", "2"]),
    ("512 wide, 2 layers", WIDE, WIDE),
]


class Others:
    """The share of all processors that programs other than this one's children have had since it was made."""

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


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(options, ranks, flags, folder):
    run([options.sfsdp, "launch", "-n", str(ranks), "--log-rank", "0", "--", "train", "--job.config_file", CONFIG,
         "--training.steps", str(options.steps), "--job.dump_folder", folder, *flags])
    with open(f"{folder}/metrics.jsonl") as file:
        steps = [json.loads(line) for line in file][2:]  # the first fetch code and memory
    times = sorted(step["step_time_s"] for step in steps)
    return times[len(times) // 10], statistics.median(times), steps[-1]["memory_gib"] * 2**30


def one_try(options, ranks, calibrated, flags, folder):
    machine = f"{folder}/machine.toml"
    others = Others()
    run([options.sfsdp, "calibrate", "--config", CONFIG, "--ranks", str(ranks), "--out", machine,
         "--calibrate.seconds", str(options.seconds), "--calibrate.max_mib", "16", *calibrated])
    fast, middle, actual = train(options, ranks, flags, folder)
    share = others.share()
    predicted = json.loads(run([options.sfsdp, "simulate", "--config", CONFIG, "--world", str(ranks), "--machine",
                                machine, "--simulate.execution", "reference", "--json", *flags]))
    return predicted["step_seconds"], fast, middle, predicted["peak_bytes"], actual, share


def one_round(options, ranks, calibrated, flags, folder):
    deadline = time.monotonic() + options.patience
    best = None
    while best is None or (best[-1] > 0.03 and time.monotonic() < deadline):
        wait_for_quiet(deadline)
        figures = one_try(options, ranks, calibrated, flags, folder)
        if best is None or figures[-1] < best[-1]:
            best = figures
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2, help="of a calibration's kernels, and of its collectives")
    parser.add_argument("--patience", type=float, default=60, help="seconds to try for an undisturbed round")
    parser.add_argument("--only", default="", help="models whose name holds this word")
    options = parser.parse_args()
    print(f"{'model':22s} {'ranks':>5s} {'predicted':>9s} {'fast':>8s} {'error':>7s} {'middle':>8s} {'error':>7s} "
          f"{'peak MiB':>8s} {'actual':>8s} {'error':>7s} {'others':>7s}", flush=True)
    for ranks in map(int, options.ranks.split(",")):
        rounds = {}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.rounds):
                for name, calibrated, flags in CASES:
                    if options.only in name:
                        rounds.setdefault(name, []).append(one_round(options, ranks, calibrated, flags, folder))
        for name, figures in rounds.items():
            predicted, fast, middle, peak, actual, _ = (statistics.median(column) for column in zip(*figures))
            shares = [100 * row[-1] for row in figures]
            error = lambda a, b: f"{100 * (a / b - 1):+6.1f}%"
            print(f"{name:22s} {ranks:5d} {predicted * 1e3:6.1f} ms {fast * 1e3:5.1f} ms {error(predicted, fast)} "
                  f"{middle * 1e3:5.1f} ms {error(predicted, middle)} {peak / 2**20:8.2f} {actual / 2**20:8.2f} "
                  f"{100 * (peak / actual - 1):+6.2f}% {min(shares):3.0f}-{max(shares):.0f}%", flush=True)


if __name__ == "__main__":
    main()
