#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The simulator against one GPU: steps of Llama under PyTorch's FSDP2, timed here, predicted by `sfsdp simulate`.

  python3 benchmarks/validate_gpu.py measure --out GPU.json [--only NAME,NAME] [--steps 10]
  python3 benchmarks/validate_gpu.py compare GPU.json [--machine dgx_h100] [--sfsdp build/release/sfsdp]

`measure` needs PyTorch with CUDA and a GPU of 80 GB, and nothing of sfsdp. It trains on one rank, so nothing is sent: what is
compared is kernels, the host that issues them, FSDP2's copies and the allocator. Parameters are float32, computed in bfloat16;
clipping, fused AdamW, as TorchTitan does. A case counts as the median of its steps after the third; `reserved` is what the
allocator of PyTorch held at most. Beside the steps it times single kernels: products of 8B's shapes, attention, a copy.
`compare` needs sfsdp and no GPU. Nothing is fitted: the machine file is taken as it stands.
"""
import argparse, json, math, os, statistics, subprocess, sys

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
SKIPPED = 3
BIG = dict(dim=4096, n_heads=32, n_kv_heads=8, hidden_dim=14336, vocab_size=128256)
# name: (model, sequences, tokens of one, execution, remat)
CASES = {
    "8b_4_layers_8192": (dict(BIG, n_layers=4), 1, 8192, "eager", "none"),
    "8b_4_layers_8192_full": (dict(BIG, n_layers=4), 1, 8192, "eager", "full"),
    "8b_4_layers_8192_compile": (dict(BIG, n_layers=4), 1, 8192, "compile", "none"),
    "8b_4_layers_2048": (dict(BIG, n_layers=4), 1, 2048, "eager", "none"),
    "8b_4_layers_2048_compile": (dict(BIG, n_layers=4), 1, 2048, "compile", "none"),
    "1b_4096": (dict(dim=2048, n_heads=32, n_kv_heads=8, hidden_dim=8192, n_layers=16, vocab_size=128256), 2, 4096, "eager", "none"),
    "1b_4096_compile": (dict(dim=2048, n_heads=32, n_kv_heads=8, hidden_dim=8192, n_layers=16, vocab_size=128256), 2, 4096, "compile", "none"),
    "125m_1024": (dict(dim=768, n_heads=12, n_kv_heads=12, hidden_dim=2048, n_layers=12, vocab_size=32000), 16, 1024, "eager", "none"),
    "125m_1024_compile": (dict(dim=768, n_heads=12, n_kv_heads=12, hidden_dim=2048, n_layers=12, vocab_size=32000), 16, 1024, "compile", "none"),
}


def run_case(name, steps):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch_llama import make_llama
    args, rows, length, execution, remat = CASES[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = make_llama(args, length)
    for i, layer in enumerate(model.layers):
        if remat == "full":
            layer = checkpoint_wrapper(layer, preserve_rng_state=False)
        if execution == "compile":
            layer = torch.compile(layer, fullgraph=True)
        model.layers[i] = layer
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(logits, labels):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    if execution == "compile":
        loss_of = torch.compile(loss_of)
    ids = torch.randint(args["vocab_size"], (rows, length + 1), device="cuda")
    seconds = []
    for step in range(steps + SKIPPED):
        if step == SKIPPED:
            torch.cuda.reset_peak_memory_stats()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        loss = loss_of(logits, ids[:, 1:])
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    seconds = seconds[SKIPPED:]
    gib = 2.0**30
    return dict(name=name, seconds=statistics.median(seconds), least=min(seconds), most=max(seconds), loss=loss.item(),
                reserved_gib=torch.cuda.max_memory_reserved() / gib, allocated_gib=torch.cuda.max_memory_allocated() / gib)


def timed(function, repeats=20):
    import torch
    for _ in range(3):
        function()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def run_kernels():
    import torch
    rows = []
    for tokens in (2048, 8192):
        for n, k in ((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)):
            x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
            dy = torch.randn(tokens, n, device="cuda", dtype=torch.bfloat16)
            for kind, function in (("y", lambda: x @ w.t()), ("dx", lambda: dy @ w), ("dw", lambda: dy.t() @ x)):
                seconds = timed(function)
                rows.append(dict(kernel=f"product {kind} {tokens} x {n} x {k}", seconds=seconds, tflops=2e-12 * tokens * n * k / seconds))
            del x, w, dy
    for batch, length in ((4, 2048), (1, 8192)):
        q, k, v = (torch.randn(batch, 32, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        grad = torch.randn_like(q)
        for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                with torch.no_grad():
                    forward = timed(attend)
                out = attend()
                backward = timed(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
            flops = 2e-12 * batch * 32 * length * length * 128  # half of the pairs
            rows.append(dict(kernel=f"attention {backend} {batch} x {length}", seconds=forward + backward, forward_tflops=flops / forward,
                             backward_tflops=2.5 * flops / backward, tflops=3.5 * flops / (forward + backward)))
    a, b = (torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    seconds = timed(lambda: a.copy_(b))
    rows.append(dict(kernel="copy of 1 GiB", seconds=seconds, gb_s=2 * 2**30 / seconds / 1e9))
    return rows


def measure(options):
    import torch
    import torch.distributed as dist
    names = options.only.split(",") if options.only else list(CASES)
    if options.child:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        dist.init_process_group("nccl")
        print(json.dumps(run_kernels() if options.child == "kernels" else run_case(options.child, options.steps)), flush=True)
        dist.destroy_process_group()
        return
    result = dict(device=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda, steps=options.steps, cases=[])
    for name in ["kernels", *names]:  # a process each: a fresh allocator, and one that fails ends alone
        child = subprocess.run([sys.executable, __file__, "measure", "--child", name, "--steps", str(options.steps)], capture_output=True,
                               text=True)
        lines = child.stdout.strip().splitlines()
        found = json.loads(lines[-1]) if child.returncode == 0 and lines else dict(name=name, error=child.stderr[-800:])
        print(name, json.dumps(found), flush=True)
        if name == "kernels":
            result["kernels"] = found
        else:
            result["cases"].append(found)
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


def predict(name, options):
    args, rows, length, execution, remat = CASES[name]
    command = [options.sfsdp, "simulate", "--config", "configs/llama3_8b.toml", "--machine", options.machine, "--world", "1", "--json",
               "--simulate.execution", execution, "--simulate.system", "fsdp2", "--simulate.norm", "fused", "--simulate.rope", "complex",
               "--activation_checkpoint.mode", remat, "--training.local_batch_size", str(rows), "--training.seq_len", str(length)]
    for key, value in args.items():
        command += [f"--model.args.{key}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def compare(options):
    with open(options.file) as file:
        measured = json.load(file)
    print(f"{measured['device']}, torch {measured['torch']}, CUDA {measured['cuda']}; machine file {options.machine}")
    print("| case | predicted | took (least to most) | error | reserved predicted | reserved | error |\n|---|---|---|---|---|---|---|")
    errors, memory = [], []
    for case in measured["cases"]:
        if "error" in case:
            print(f"| {case['name']} | | failed: {case['error'].strip().splitlines()[-1]} | | | | |")
            continue
        found = predict(case["name"], options)
        step, peak = found["step_seconds"], found["peak_bytes"] / 2.0**30
        errors.append(step / case["seconds"] - 1)
        memory.append(peak / case["reserved_gib"] - 1)
        print(f"| {case['name']} | {1e3 * step:.1f} ms | {1e3 * case['seconds']:.1f} ms ({1e3 * case['least']:.1f}–{1e3 * case['most']:.1f}) "
              f"| {errors[-1]:+.1%} | {peak:.2f} GiB | {case['reserved_gib']:.2f} GiB | {memory[-1]:+.1%} |")
    if errors:
        mean = lambda values: math.fsum(map(abs, values)) / len(values)
        print(f"mean error of {len(errors)}: time {mean(errors):.1%}, largest {max(map(abs, errors)):.1%}; memory {mean(memory):.1%}, "
              f"largest {max(map(abs, memory)):.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("--out", default="gpu.json")
    one.add_argument("--only", help="names of cases, with commas")
    one.add_argument("--steps", type=int, default=10)
    one.add_argument("--child", help=argparse.SUPPRESS)
    one.set_defaults(run=measure)
    two = commands.add_parser("compare")
    two.add_argument("file")
    two.add_argument("--machine", default="dgx_h100")
    two.add_argument("--sfsdp", default="build/release/sfsdp")
    two.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
