#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a step of a model of peers.py takes at least on this machine, with all ranks at once, part by part.

  PYTHON benchmarks/bound.py [--model 125m|debug|gpt2] [--dtype float32|bfloat16] [--ranks 2] [--step SECONDS]

Products: each shape by the fastest library that is here (products.py). Attention: the faster of LibTorch's kernel and sfsdp's, the whole
step's. Bytes, at the rate of a copy of 256 MiB: AdamW reads four numbers an element of the shard and writes three, the norm reads one;
a gather reads and writes what is gathered, layers twice a step (forward and backward), embedding and output once; a reduction
reads what all ranks made of a shard and writes the sum; with bfloat16 a shard is cast before each gather, and logits in float32 are no part.
Left out: norms, rotary embedding, activation functions, the loss. --step, a measured step, is set against the sum; `peers.py --bound` does
so in each of its rounds. GPT-2's embedding, which is its output too, is gathered once. Ranks are bound to a core each.
"""
import argparse, os, re, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "benchmarks"))
import products  # noqa: E402
from peer_models import MODELS, number_of_parameters  # noqa: E402

ATTENTION = {"125m": "2 x 12/4  heads,  256 x  64", "debug": "1 x 16/16 heads, 2048 x  16", "gpt2": "2 x 12/12 heads,  256 x  64"}


def on_all_ranks(command, ranks):
    cores = sorted(os.sched_getaffinity(0))
    started = [subprocess.Popen(["taskset", "-c", str(cores[r % len(cores)]), *command], env=dict(os.environ, OMP_NUM_THREADS="1"),
                                stdout=subprocess.PIPE, text=True) for r in range(ranks)]
    outputs = [rank.communicate()[0] for rank in started]
    if any(rank.returncode for rank in started):
        raise SystemExit(f"{' '.join(command)}: failed")
    return outputs


def product_seconds(model, dtype, ranks, seconds):
    libraries = [("aten", ""), ("onednn", "")]
    if dtype == "float32":
        libraries += [("openblas", "")] * products.has_openblas()
        libraries += [(name, "") for name, path in products.LIBRARIES.items() if os.path.exists(path)]
    shapes = products.MODELS[model]
    options = argparse.Namespace(dtype=dtype, ranks=ranks, seconds=seconds)
    rates = [products.measure(library, core, sorted(shapes), options)[0] for library, core in libraries]
    return sum(2e-9 * t * n * k * times / max(rate[kind, f"{t},{n},{k}"] for rate in rates)
               for (t, n, k), times in shapes.items() for kind in ("y", "dx", "dw"))


def attention_seconds(model, dtype, ranks):
    """Of one layer."""
    line = re.compile(re.escape(f"{dtype:<9} {ATTENTION[model]}").replace(r"\ ", " +").replace(" +", r"\s+")
                      + r".*forward\s+([\d.]+) and\s+([\d.]+) ms.*backward\s+([\d.]+) and\s+([\d.]+) ms")
    found = [line.search(out) for out in on_all_ranks([os.path.join(ROOT, "build/release/sfsdp-bench"), "attention"], ranks)]
    if not all(found):
        raise SystemExit(f"sfsdp-bench attention has no line of {dtype} {ATTENTION[model]}: build it anew")
    figures = [[float(g) for g in match.groups()] for match in found]
    return statistics.mean(min(f[0], f[1]) + min(f[2], f[3]) for f in figures) / 1e3


def copy_rate(ranks):
    """Bytes read and written in a second by a rank."""
    code = ("import time, torch\ntorch.set_num_threads(1)\na, b = torch.ones(2, 64 << 20)\ntimes = []\n"
            "for _ in range(9):\n  t = time.perf_counter(); b.copy_(a); times.append(time.perf_counter() - t)\nprint(sorted(times)[4])")
    seconds = [float(out) for out in on_all_ranks([sys.executable, "-c", code], ranks)]
    return 2 * (256 << 20) / statistics.mean(seconds)


def measure(model, dtype, ranks, seconds=0.1):
    """({part: its seconds}, parameters, bytes copied in a second). seconds: for each product."""
    layer, ends = number_of_parameters(model)
    layers = MODELS[model][1]["n_layers"]
    parameters, shard = layer * layers + ends, (layer * layers + ends) / ranks
    width = 2 if dtype == "bfloat16" else 4
    gathered = 2 * layer * layers + ends
    cast = gathered / ranks * (4 + width) if width == 2 else 0
    rate = copy_rate(ranks)
    parts = {"products": product_seconds(model, dtype, ranks, seconds), "attention": layers * attention_seconds(model, dtype, ranks),
             "AdamW and the norm": shard * 4 * 8 / rate, "gathers": (gathered * 2 * width + cast) / rate,
             "reductions": (parameters * 4 + shard * 4) / rate}
    return parts, parameters, rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="125m", choices=ATTENTION)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each product")
    parser.add_argument("--step", type=float, help="seconds of a measured step")
    options = parser.parse_args()
    parts, parameters, rate = measure(options.model, options.dtype, options.ranks, options.seconds)
    total = sum(parts.values())
    print(f"{options.model}, {options.dtype}, {options.ranks} ranks, {parameters / 1e6:.1f} M parameters, copies {rate / 1e9:.1f} GB/s a rank")
    print(", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in parts.items()) + f": {1e3 * total:.0f} ms"
          + (f"; {options.step:.3f} s is {options.step / total:.2f} of it" if options.step else ""))


if __name__ == "__main__":
    main()
