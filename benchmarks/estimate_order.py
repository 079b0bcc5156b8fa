#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Does the estimate of `sfsdp plan --search` rank configurations as the simulator does?

  benchmarks/estimate_order.py [--sfsdp build/release/sfsdp]

Estimates every configuration of the searches below, simulates each by `sfsdp simulate --sweep`, and prints Kendall's tau of
each search and of all of them, the largest error in time and in memory, and estimates a second on one core.
"""
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEARCHES = [  # config, machine, ranks, sequences a step
    ("llama3_8b", "dgx_h100", 64, 256),
    ("llama3_8b", "a100_400g", 32, 96),
    ("gpt2_124m", "dgx_h100", 16, 512),
]


def run(sfsdp, *args):
    done = subprocess.run([sfsdp, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def tau(pairs):
    score = 0
    for i, (a, x) in enumerate(pairs):
        for b, y in pairs[:i]:
            product = (a - b) * (x - y)
            score += (product > 0) - (product < 0)
    return score / (len(pairs) * (len(pairs) - 1) / 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    sfsdp = parser.parse_args().sfsdp
    everything, seconds = [], 0
    for config, machine, world, batch in SEARCHES:
        base = ["--config", f"{ROOT}/configs/{config}.toml", "--machine", machine]
        found = json.loads(run(sfsdp, "plan", "--search", *base, "--world", str(world), "--training.global_batch_size",
                               str(batch), "--top", "1", "--json"))
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as cases:
            cases.writelines(json.dumps(c["options"]) + "\n" for c in found["estimated"])
            cases.flush()
            simulated = [json.loads(line) for line in run(sfsdp, "simulate", *base, "--sweep", cases.name).splitlines()]
        pairs = [(e["step_seconds"], s["step_seconds"]) for e, s in zip(found["estimated"], simulated, strict=True)]
        time = max(abs(e / s - 1) for e, s in pairs)
        memory = max(abs(e["peak_bytes"] / s["peak_bytes"] - 1) for e, s in zip(found["estimated"], simulated))
        seconds += found["estimate_seconds"]
        everything += pairs
        print(f"{config} on {world} x {machine}, {batch} sequences: {len(pairs)} configurations, tau {tau(pairs):.4f}, "
              f"time off by at most {100 * time:.2g} %, memory by {100 * memory:.1f} %")
    print(f"all: {len(everything)} configurations, tau {tau(everything):.4f}, "
          f"{len(everything) / seconds:,.0f} estimates a second")


if __name__ == "__main__":
    main()
