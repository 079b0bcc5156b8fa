#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/ablation.md: what bucketing and reordering are worth, in the simulator and on this machine.

  benchmarks/ablation.py [--sfsdp build/release/sfsdp] [--only simulated|measured] [--ranks 2,4] [--rounds 5] [--steps 12]

--only leaves the other half of the page as it is. Measured: a round trains with each variant in turn, so that all meet
the same state of the machine; a run's time is the median of its steps without the first two.
"""
import argparse, json, os, statistics, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = f"{ROOT}/docs/ablation.md"
OVERLAP = "split_collectives,prefetch_gathers,sink_waits,early_all_reduces"
SINGLE = ["--parallelism.fsdp_layout", "dim0", "--debug.disable_pass"]
VARIANTS = {
    "vanilla": SINGLE + ["copy_buckets,reshard," + OVERLAP],
    "reorder": SINGLE + ["copy_buckets,reshard"],
    "copies": ["--parallelism.fsdp_layout", "dim0"],
    "bucket": ["--debug.disable_pass", OVERLAP],
    "both": [],
    "auto": ["--parallelism.fsdp_wrap", "auto", "--parallelism.fsdp_reshard_after_forward", "auto"],
    "search": ["--parallelism.fsdp_wrap", "search", "--parallelism.fsdp_reshard_after_forward", "auto"],
}
MODELS = {"8b": "op", "70b": "full", "405b": "full"}
WORLDS = [8, 16, 32, 64, 128, 256, 512, 1024]
HEAD = """# Ablation: what buckets and reordering are worth

`vanilla`: a collective per parameter, where it is needed; `reorder`: started early, waited for late; `bucket`: one per
layer, stored flat; `both`: what a step gets by default; `copies`: the same of parameters that are stored one by one, copied into
and out of buckets as FSDP2 does. `auto`: units by the paper's greedy rule, `search`: by search; both may keep units
gathered until backward. `auto` plans what it makes of 95 % of the memory, and takes less where that plan does not fit. Written by `benchmarks/ablation.py`.
"""
SIMULATED = "\n## Simulated\n"
MEASURED = "\n## Measured\n"


def simulate(sfsdp, model, remat, world, flags):
    command = [sfsdp, "simulate", "--config", f"{ROOT}/configs/llama3_{model}.toml", "--machine",
               f"{ROOT}/machines/dgx_h100.toml", "--world", str(world), "--json", "--training.local_batch_size", "1",
               "--training.seq_len", "8192", "--training.global_batch_size", "-1", "--training.mixed_precision_param", "bfloat16",
               "--parallelism.fsdp_machine", f"{ROOT}/machines/dgx_h100.toml"] + flags
    if remat == "op":
        command += ["--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op"]
    else:
        command += ["--activation_checkpoint.mode", remat]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def simulated(options):
    lines = [SIMULATED, "`sfsdp simulate` on `machines/dgx_h100.toml`, FSDP over all GPUs, 1 × 8,192 tokens each, bf16 with f32",
             "reduction, fused execution; 8B has remat by op, 70B and 405B in full. Milliseconds of a step, in brackets those of",
             "exposed communication. Peak: of `both` and of `search`.", "",
             "The greedy rule cuts where a gather would outlast the compute before it. Over many hundred GPUs the latency alone does, so it",
             "ends in units of one parameter. Gradients are written in their buckets where the peak does not grow: that depends on where it",
             "is, so a row may copy more, and be slower, than those beside it.", "",
             "| model | GPUs | " + " | ".join(VARIANTS) + " | peak |", "|---|---|" + "---|" * (len(VARIANTS) + 1)]
    for model, remat in MODELS.items():
        for world in WORLDS:
            cells, peaks = [], {}
            for variant, flags in VARIANTS.items():
                r = simulate(options.sfsdp, model, remat, world, flags)
                peak = peaks[variant] = (r["state_bytes"] + r["arena_bytes"]) / 2**30
                exposed = sum(r["exposed_seconds"].values())
                cells.append(f"{1e3 * r['step_seconds']:,.0f} ({1e3 * exposed:,.0f})" if r["fits"] else
                             f"out of memory: {peak:,.0f} GiB")
            lines.append(f"| {model.upper()} | {world:,} | " + " | ".join(cells) + f" | {peaks['both']:,.1f}, {peaks['search']:,.1f} GiB |")
    return "\n".join(lines) + "\n"


def train(options, ranks, flags):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.sfsdp, "launch", "-n", str(ranks), "--log-rank", "0", "--", "train", "--job.config_file",
                        f"{ROOT}/configs/llama3_debug.toml", "--training.steps", str(options.steps),
                        "--job.dump_folder", folder, "--exec.executor", "reference", "--parallelism.fsdp_machine",
                        f"{ROOT}/machines/cpu_local.toml",
                        *flags], capture_output=True, check=True)
        with open(f"{folder}/metrics.jsonl") as file:
            steps = [json.loads(line) for line in file]
    return statistics.median(s["step_time_s"] for s in steps[2:]), steps[-1]["loss"], steps[-1]["memory_gib"] * 1024


def measured(options):
    lines = [MEASURED, f"`configs/llama3_debug.toml` on {os.cpu_count()} cores, processes over TCP; median (least to most) of {options.rounds} interleaved",
             "runs, each the median of its steps. Collectives block on this backend: reordering cannot gain here, and what buckets",
             "gain is fewer of them. `auto` and `search` count with `machines/cpu_local.toml`.", "",
             "| ranks | variant | step | against `both` | peak of rank 0 | last loss |", "|---|---|---|---|---|---|"]
    for ranks in map(int, options.ranks.split(",")):
        runs = {variant: [] for variant in VARIANTS}
        for _ in range(options.rounds):
            for variant, flags in VARIANTS.items():
                runs[variant].append(train(options, ranks, flags))
        for variant, figures in runs.items():
            times = sorted(1e3 * f[0] for f in figures)
            ratios = sorted(f[0] / both[0] for f, both in zip(figures, runs["both"]))
            lines.append(f"| {ranks} | {variant} | {statistics.median(times):.0f} ({times[0]:.0f} to {times[-1]:.0f}) ms | "
                         f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {figures[0][2]:.1f} MiB | {figures[0][1]:.6f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--only", choices=["simulated", "measured"])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    parts = {name: make(options) for name, make in (("simulated", simulated), ("measured", measured))
             if options.only in (None, name)}
    with open(PAGE) as file:  # the other half may have been written meanwhile
        page = file.read()
    before, _, after = page.partition(MEASURED)
    halves = {"simulated": SIMULATED + before.partition(SIMULATED)[2], "measured": MEASURED + after}
    with open(PAGE, "w") as file:
        file.write(HEAD + parts.get("simulated", halves["simulated"]) + parts.get("measured", halves["measured"]))


if __name__ == "__main__":
    main()
