#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints the transient memory of the plan (peak without sharded states) against FSDP2's own bound, as a table.

  benchmarks/transient_memory.py [--sfsdp build/release/sfsdp]

FSDP2's bound on backward (its memory test): gradient shards, three blocks and what is in no block, beside activations.
Under mixed precision two of the blocks are gathered parameters (bf16: the one in use, the one being gathered), the third is
a block's gradients on their way to the reduction (f32); what is in no block (embedding, last norm, output) stays
gathered, as the root's group does, with its gradients in f32. Activations are the plan's own: the most that is alive
at once of all that is neither gathered nor gradient, so the same on both sides.
"""
import argparse, json, os, re, subprocess, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MACHINE = f"{ROOT}/machines/dgx_h100.toml"
CASES = [("8b", "op", 8), ("8b", "full", 8), ("8b", "full", 64), ("70b", "full", 64), ("70b", "full", 512), ("405b", "full", 512),
         ("405b", "full", 1024)]
SIZES = {"f32": 4, "bf16": 2, "f64": 8, "i64": 8}


def numel(dims):
    n = 1
    for dim in dims.split(","):
        n *= int(dim.split("/")[0])
    return n


def read(path):
    """Buffers (name, bytes, first, last), parameters of the model by path, names of gradients that a pack reads."""
    buffers, units, packed, casts = [], {}, set(), {}
    with open(path) as file:
        for line in file:
            if m := re.match(r"  %(\S+) window offset=\d+ bytes=(\d+) first=(\d+) last=(\d+)", line):
                buffers.append((m[1], int(m[2]), int(m[3]), int(m[4])))
            elif m := re.match(r"  %\S+ = param .*?name=(\S+) .*: \w+\[(.*?)\]", line):
                units[m[1]] = numel(m[2])  # of a rank
            elif m := re.match(r"  %(\S+) = cast %(\S+)", line):
                casts[m[1]] = m[2]
            elif m := re.match(r"  %\S+ = pack \[(.*?)\]", line):
                packed.update(name.strip(" %") for name in m[1].split(","))
    packed |= {casts[name] for name in packed if name in casts}
    return buffers, units, packed


def most(buffers):
    changes = {}
    for _, size, first, last in buffers:
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    live = peak = 0
    for position in sorted(changes):
        live += changes[position]
        peak = max(peak, live)
    return peak


def row(sfsdp, model, remat, world):
    with tempfile.TemporaryDirectory() as folder:
        ac = ["selective", "--activation_checkpoint.selective_ac_option", "op"] if remat == "op" else [remat]
        done = subprocess.run([sfsdp, "plan", "--json", "--config", f"{ROOT}/configs/llama3_{model}.toml", "--machine", MACHINE, "--world", str(world),
                        "--training.local_batch_size", "1", "--training.seq_len", "8192", "--training.global_batch_size", "-1",
                        "--training.mixed_precision_param", "bfloat16", "--activation_checkpoint.mode", *ac,
                        "--out", f"{folder}/plan"],
                              check=True, capture_output=True, text=True)
        buffers, units, packed = read(f"{folder}/plan")
        arena = json.loads(done.stdout)["arena_bytes"]
    is_ours = lambda name: ".flat." in name or name in packed
    activations = most([b for b in buffers if not is_ours(b[0])])
    block = max(n for name, n in units.items() if re.search(r"layers\.\d+", name))
    return arena, activations, {name: n * world for name, n in units.items()}, block * world


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    sfsdp = parser.parse_args().sfsdp
    print("| model | remat | GPUs | FSDP2's bound | activations in it | plan (units by name) | ratio | without activations |")
    print("|---|---|---|---|---|---|---|---|")
    for model, remat, world in CASES:
        arena, activations, units, block = row(sfsdp, model, remat, world)
        rest = sum(n for name, n in units.items() if not re.search(r"layers\.\d+", name))
        everything = sum(units.values())
        bound = everything // world * 4 + 2 * block * 2 + block * 4 + rest * (2 + 4)
        gib = lambda n: f"{n / 2**30:.2f} GiB"
        print(f"| {model.upper()} | {remat} | {world:,} | {gib(bound + activations)} | {gib(activations)} | {gib(arena)} | "
              f"{arena / (bound + activations):.2f} | {(arena - activations) / bound:.2f} |", flush=True)


if __name__ == "__main__":
    main()
