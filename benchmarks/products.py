#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Products of a training step by library: which is the fastest on this machine, for each shape, with all ranks at once.

  python3 benchmarks/products.py [--models 125m,debug,gpt2] [--ranks 2] [--seconds 0.3] [--dtype float32|bfloat16] [--out FILE.json]

Each rank is a process of one thread (`sfsdp-bench products`). For each shape (tokens x n x k) the three products of a linear layer.
Libraries: `aten`, at::mm, which is MKL's in PyPI's wheels; `onednn`, that of LibTorch, and `openblas`, where it is installed, as the planned executor
calls them; `openblas_serial` and `blis`, Debian's packages libopenblas0-serial and libblis4-serial, for OpenBLAS with each OPENBLAS_CORETYPE.
The table has GF/s a rank, the median over ranks of the best of several runs; below it, for each model, the time of all products of a step.
"""
import argparse, ctypes, json, os, statistics, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = {"openblas_serial": "/usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3", "blis": "/usr/lib/x86_64-linux-gnu/blis-serial/libblas.so.3"}


def layers(dim, hidden, kv, vocab, blocks, tokens):
    """{(tokens, n, k): how often a step has the layer}"""
    found = {}
    for n, k, times in ((dim, dim, 2), (kv, dim, 2), (hidden, dim, 2), (dim, hidden, 1)):
        found[(tokens, n, k)] = found.get((tokens, n, k), 0) + times * blocks
    found[(tokens, vocab, dim)] = 1
    return found


MODELS = {"125m": layers(768, 2048, 256, 32000, 12, 512), "debug": layers(256, 768, 256, 2048, 6, 2048),
          "gpt2": {(512, 2304, 768): 12, (512, 768, 768): 12, (512, 3072, 768): 12, (512, 768, 3072): 12, (512, 50257, 768): 1}}


def has_openblas():
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return False
    return True


def measure(library, core_type, shapes, options):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.pop("OPENBLAS_CORETYPE", None)
    if core_type:
        environment["OPENBLAS_CORETYPE"] = core_type
    command = [os.path.join(ROOT, "build/release/sfsdp-bench"), "products", LIBRARIES.get(library, library), options.dtype, str(options.seconds),
               *(",".join(map(str, shape)) for shape in shapes)]
    cores = sorted(os.sched_getaffinity(0))
    ranks = [subprocess.Popen(["taskset", "-c", str(cores[r % len(cores)]), *command], env=environment, stdout=subprocess.PIPE, text=True)
             for r in range(options.ranks)]
    rates, errors = {}, {}
    for rank in ranks:
        out = rank.communicate()[0]
        if rank.returncode != 0:
            raise SystemExit(f"{library} {core_type}: exit status {rank.returncode}")
        for line in out.splitlines():
            kind, shape, rate, error = line.split()
            rates.setdefault((kind, shape), []).append(float(rate))
            errors[(kind, shape)] = float(error)
    return {key: statistics.median(values) for key, values in rates.items()}, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--core-types", default=",Haswell,Zen,SkylakeX,Cooperlake,Sapphirerapids")
    parser.add_argument("--out")
    options = parser.parse_args()
    models = {name: MODELS[name] for name in options.models.split(",")}
    shapes = sorted({shape for model in models.values() for shape in model})
    kinds = [("aten", ""), ("onednn", "")]
    if options.dtype == "float32":
        kinds += [("openblas", "")] * has_openblas() + [("blis", "")] + [("openblas_serial", t) for t in options.core_types.split(",")]
    columns, errors = {}, {}
    for library, core_type in kinds:
        if library in LIBRARIES and not os.path.exists(LIBRARIES[library]):
            print(f"{library} is not here: {LIBRARIES[library]}", file=sys.stderr)
            continue
        name = f"{library} {core_type}".strip()
        columns[name], errors[name] = measure(library, core_type, shapes, options)
    names = list(columns)
    print("| product | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for kind, shape in columns[names[0]]:
        print(f"| {kind} {shape.replace(',', ' x ')} | " + " | ".join(f"{columns[c][kind, shape]:.0f}" for c in names) + " |")
    print("largest error, of the result's own: " + ", ".join(f"{c} {max(errors[c].values()):.1e}" for c in names))
    steps = {}
    for model, found in models.items():
        flops = {(kind, f"{t},{n},{k}"): 2e-9 * t * n * k * times for (t, n, k), times in found.items() for kind in ("y", "dx", "dw")}
        steps[model] = {c: sum(f / columns[c][p] for p, f in flops.items()) for c in names}
        steps[model]["the best of all"] = sum(f / max(columns[c][p] for c in names) for p, f in flops.items())
        print(f"{model}, {options.dtype}, products of a step: " + ", ".join(f"{c} {s:.3f} s" for c, s in steps[model].items()))
    if options.out:
        text = {c: {" ".join(key): rate for key, rate in rates.items()} for c, rates in columns.items()}
        with open(options.out, "w") as file:
            json.dump(dict(dtype=options.dtype, ranks=options.ranks, rates=text, steps=steps), file, indent=1)


if __name__ == "__main__":
    main()
