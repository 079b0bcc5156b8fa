#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Products of a training step by library: which is the fastest on this machine, for each shape, with all ranks at once.

  .venv/bin/python benchmarks/products.py [--models 125m,debug,gpt2] [--ranks 2] [--seconds 0.3] [--dtype float32|bfloat16] [--out FILE.json]

Each rank is a process of one thread. For each shape (tokens x n x k) the three products of a linear layer: y = x wT, dx = dy w, dw = dyT x.
Libraries: `aten`, what at::mm calls (MKL in PyPI's wheels); `onednn`, its inner product through ATen; `openblas` and `blis`, Debian's
packages libopenblas0-serial and libblis4-serial, opened at run time, for OpenBLAS with each OPENBLAS_CORETYPE given (its own choice first).
The table has GF/s a rank, the median over ranks of the best of several runs; `step` is the time of all products of a step.
"""
import argparse, ctypes, json, multiprocessing, os, statistics, sys, time

LIBRARIES = {"openblas": "/usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3", "blis": "/usr/lib/x86_64-linux-gnu/blis-serial/libblas.so.3"}
CORE_TYPES = ["", "Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids"]


def layers(dim, hidden, kv, vocab, blocks, tokens):
    """{(tokens, n, k): how often a step has the layer}"""
    found = {}
    for n, k, times in ((dim, dim, 2), (kv, dim, 2), (hidden, dim, 2), (dim, hidden, 1)):
        found[(tokens, n, k)] = found.get((tokens, n, k), 0) + times * blocks
    found[(tokens, vocab, dim)] = 1
    return found


def gpt_layers(dim, vocab, blocks, tokens):
    return {(tokens, 3 * dim, dim): blocks, (tokens, dim, dim): blocks, (tokens, 4 * dim, dim): blocks, (tokens, dim, 4 * dim): blocks,
            (tokens, vocab, dim): 1}


MODELS = {"125m": layers(768, 2048, 768, 32000, 12, 512), "debug": layers(256, 768, 256, 2048, 6, 4096), "gpt2": gpt_layers(768, 50304, 12, 512)}


def product_of(library, dtype):
    """A function (kind, x, w, dy, out) that computes one product into `out`."""
    import torch
    if library == "aten":
        def run(kind, x, w, dy, out):
            a, b = {"y": (x, w.t()), "dx": (dy, w), "dw": (dy.t(), x)}[kind]
            torch.mm(a, b, out=out)
        return run
    if library == "onednn":
        def run(kind, x, w, dy, out):
            a, b = {"y": (x, w), "dx": (dy, w.t()), "dw": (dy.t(), x.t())}[kind]
            torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return run
    if dtype != torch.float32:
        return None
    blas = ctypes.CDLL(LIBRARIES[library])
    gemm, one, zero = blas.cblas_sgemm, ctypes.c_float(1), ctypes.c_float(0)
    pointer = lambda t: ctypes.c_void_p(t.data_ptr())

    def run(kind, x, w, dy, out):
        row, no, yes = 101, 111, 112
        (m, n), (tokens, k) = out.shape, x.shape
        if kind == "y":
            gemm(row, no, yes, m, n, k, one, pointer(x), k, pointer(w), k, zero, pointer(out), n)
        elif kind == "dx":
            gemm(row, no, no, m, n, w.shape[0], one, pointer(dy), w.shape[0], pointer(w), k, zero, pointer(out), n)
        else:
            gemm(row, yes, no, m, n, tokens, one, pointer(dy), dy.shape[1], pointer(x), k, zero, pointer(out), n)
    return run


def worker(rank, library, shapes, seconds, dtype_name, barrier, queue):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    import torch
    torch.set_num_threads(1)
    dtype = getattr(torch, dtype_name)
    product = product_of(library, dtype)
    rates = {}
    for tokens, n, k in shapes:
        x, w, dy = (torch.randn(*size, dtype=dtype) for size in ((tokens, k), (n, k), (tokens, n)))
        for kind, size in (("y", (tokens, n)), ("dx", (tokens, k)), ("dw", (n, k))):
            out = torch.empty(size, dtype=dtype)
            if product is None:
                continue
            product(kind, x, w, dy, out)
            exact = {"y": lambda: x.float() @ w.float().t(), "dx": lambda: dy.float() @ w.float(), "dw": lambda: dy.float().t() @ x.float()}[kind]
            if library in LIBRARIES and not torch.allclose(out.float(), exact(), rtol=1e-3, atol=1e-2):
                raise SystemExit(f"{library} is wrong for {kind} of {tokens} x {n} x {k}")
            barrier.wait()
            best, end = 1e9, time.perf_counter() + seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                product(kind, x, w, dy, out)
                best = min(best, time.perf_counter() - begin)
            rates[f"{kind} {tokens} x {n} x {k}"] = 2e-9 * tokens * n * k / best
    queue.put((rank, rates))


def measure(library, core_type, shapes, options):
    context = multiprocessing.get_context("spawn")
    if core_type:
        os.environ["OPENBLAS_CORETYPE"] = core_type
    else:
        os.environ.pop("OPENBLAS_CORETYPE", None)
    barrier, queue = context.Barrier(options.ranks), context.Queue()
    ranks = [context.Process(target=worker, args=(r, library, shapes, options.seconds, options.dtype, barrier, queue)) for r in range(options.ranks)]
    for process in ranks:
        process.start()
    found = [queue.get()[1] for _ in ranks]
    for process in ranks:
        process.join()
    return {name: statistics.median(rates[name] for rates in found) for name in found[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="125m,debug,gpt2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--core-types", default=",".join(CORE_TYPES))
    parser.add_argument("--out")
    options = parser.parse_args()
    models = {name: MODELS[name] for name in options.models.split(",")}
    shapes = sorted({shape for model in models.values() for shape in model})
    columns = {}
    kinds = [("aten", ""), ("onednn", "")]
    if options.dtype == "float32":
        kinds += [("blis", "")] + [("openblas", t) for t in options.core_types.split(",")]
    for library, core_type in kinds:
        if library in LIBRARIES and not os.path.exists(LIBRARIES[library]):
            print(f"{library} is not here: {LIBRARIES[library]}", file=sys.stderr)
            continue
        columns[f"{library} {core_type}".strip()] = measure(library, core_type, shapes, options)
    names = list(columns)
    print("| product | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for product in columns[names[0]]:
        print(f"| {product} | " + " | ".join(f"{columns[c][product]:.0f}" for c in names) + " |")
    best = {product: max(columns[c][product] for c in names) for product in columns[names[0]]}
    steps = {}
    for model, found in models.items():
        flops = {f"{kind} {t} x {n} x {k}": 2e-9 * t * n * k * times for (t, n, k), times in found.items() for kind in ("y", "dx", "dw")}
        steps[model] = {c: sum(f / columns[c][p] for p, f in flops.items()) for c in names}
        steps[model]["best of all"] = sum(f / best[p] for p, f in flops.items())
        print(f"{model}, {options.dtype}, products of a step: " + ", ".join(f"{c} {s:.3f} s" for c, s in steps[model].items()))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(dict(dtype=options.dtype, ranks=options.ranks, rates=columns, steps=steps), file, indent=1)


if __name__ == "__main__":
    main()
