#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What the trainer costs beside the step it runs: reading batches, reporting, waiting for other ranks to agree.

  benchmarks/trainer_overhead.py [--steps 60] [--ranks 1] [-- flags of train]

Measures the debug model, with metrics.jsonl, TensorBoard and a console line for every step. `in the step`: of step_time_s, what
is neither forward, backward, update nor a collective. `between steps`: from one step's end to the next one's begin. Both are
medians over steps after the tenth, as other programs on the machine may stop any one of them.
"""
import argparse, json, os, statistics, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train = ["train", "--config", f"{ROOT}/configs/llama3_debug.toml", "--training.steps", str(args.steps),
                 "--metrics.log_freq", "1", "--metrics.enable_tensorboard", "--job.dump_folder", folder, *args.flags]
        launch = ["launch", "-n", str(args.ranks), "--log-rank", "0", "--"] if args.ranks > 1 else []
        subprocess.run([f"{ROOT}/build/release/sfsdp", *launch, *train], check=True, stdout=subprocess.DEVNULL)
        with open(f"{folder}/metrics.jsonl") as file:
            steps = [json.loads(line) for line in file][10:]
    seconds = statistics.median(s["step_time_s"] for s in steps)
    rest = [s["step_time_s"] - s["forward_backward_s"] - s["optimizer_s"] - s["comm_exposed_s"] - s["data_s"] for s in steps]
    exposed = statistics.median(s["comm_exposed_s"] for s in steps)
    print(f"a step {seconds * 1e3:.1f} ms; of it {100 * exposed / seconds:.2f} % exposed communication")
    for name, values in (("data", [s["data_s"] for s in steps]), ("in the step", rest), ("between steps", [s["between_s"] for s in steps])):
        print(f"{name}: {statistics.median(values) * 1e6:.0f} µs, {100 * statistics.median(values) / seconds:.3f} % of a step")


if __name__ == "__main__":
    main()
