#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One training step here and in PyTorch, on the same machine, in one run: time and memory.

  .venv/bin/python benchmarks/peers.py [--model 125m|debug] [--dtype float32|bfloat16] [--ranks 2] [--rounds 3] [--steps 8]
                                       [--peers fsdp2,fsdp2_compile,ddp,simple_fsdp] [--ours planned,planned_tcp,planned_aten,planned_by_processor,reference]
                                       [--simple_fsdp SCRIPT] [--start_up] [--out FILE.json]

Each rank is a process of one thread; the contestants run in turn, in an order that turns round in each round. A run counts as the
median of its steps after the third; ratios are of a round, given as median [least, most]. Same sizes, batch, optimizer (AdamW, fused in
PyTorch), clipping and precision: bfloat16 is parameters in float32, computed in bfloat16, reduced in float32. Weights and data differ, which
costs nothing. Both sides have a malloc that keeps its pages.

Memory: the most of a rank's proportional set size (PSS), sampled from its start on, less that of a process that has loaded LibTorch and done
nothing. Needs torch in this Python, and build/release/sfsdp. Run it alone.

simple_fsdp is the Python SimpleFSDP under torch.compile with a bucket a block. It is a program of others, SCRIPT: it takes --mode, --bucket, --size,
--batch, --seq, --param-dtype, --warmup, --steps and --count, and prints RESULT and a JSON object with times (ms), import_s, build_s and first_step_s.

--start_up prints instead, for each contestant, the seconds from the start of its processes until its first step is over, less a steady step: with
empty caches, and once more with those that the first run left. For simple_fsdp it is import_s + build_s + first_step_s, without the launcher's.
"""
import argparse, array, json, os, random, statistics, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MALLOC = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="34359738368", MALLOC_TOP_PAD_="67108864", MALLOC_ARENA_MAX="1",
              GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCHINDUCTOR_COMPILE_THREADS="2", **MALLOC)
SKIPPED = 3
FIRST = "first step done"
# name: (sizes, sequences of a rank, tokens of one)
MODELS = {
    "125m": (dict(dim=768, n_layers=12, n_heads=12, n_kv_heads=4, hidden_dim=2048, vocab_size=32000), 2, 256),
    "debug": (dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, hidden_dim=768, vocab_size=2048), 1, 2048),
}
OURS = {
    "planned": ["--exec.executor", "planned"],
    "planned_tcp": ["--exec.executor", "planned", "--comm.shared_memory", "false"],
    **{f"planned_{products}": ["--exec.executor", "planned", "--exec.products", products] for products in ("aten", "by_processor", "onednn", "openblas")},
    "reference": ["--exec.executor", "reference"],
}


def torch_worker(peer, name, dtype, steps):
    import torch
    import torch.distributed as dist
    from torch_llama import make_llama
    args, rows, length = MODELS[name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = make_llama(args, length, rope="real")
    half = dtype == "bfloat16"

    def loss_of(logits, labels):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    if peer.startswith("fsdp2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        if peer == "fsdp2_compile":
            for i, layer in enumerate(model.layers):
                model.layers[i] = torch.compile(layer, fullgraph=True)
            loss_of = torch.compile(loss_of)
        kinds = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else {}
        policy = MixedPrecisionPolicy(**kinds)
        fully_shard(model.tok_embeddings, mp_policy=policy)
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard([model.norm, model.output], mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mp_policy=policy)
        wrapped = model
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(args["vocab_size"], (rows, length + 1), generator=torch.Generator().manual_seed(dist.get_rank()))
    seconds = []
    for step in range(steps):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half and peer == "ddp"):
            logits = wrapped(ids[:, :-1])
        loss = loss_of(logits, ids[:, 1:])
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
        if step == 0 and dist.get_rank() == 0:
            print(FIRST, flush=True)
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


class Memory(threading.Thread):
    """Samples the PSS of the processes below one whose command line has a word; most: of any of them, in MiB."""

    def __init__(self, root, word):
        super().__init__(daemon=True)
        self.root, self.word, self.most, self.over = root, word, 0, False

    def run(self):
        while not self.over:
            for pid in self.below(self.root):
                try:
                    with open(f"/proc/{pid}/cmdline") as file:
                        if self.word not in file.read():
                            continue
                    with open(f"/proc/{pid}/smaps_rollup") as file:
                        pss = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
                    self.most = max(self.most, pss / 1024)
                except (OSError, StopIteration):
                    pass
            time.sleep(0.5)

    def below(self, pid):
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                children = [int(c) for c in file.read().split()]
        except OSError:
            return []
        return children + [p for c in children for p in self.below(c)]


def run_command(command, word, environment, first):
    """What it printed; the most memory of a process with `word` in its command line, in MiB; seconds until it printed `first`, None if never."""
    started, until_first, lines = time.monotonic(), None, []
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    memory = Memory(os.getpid(), word)
    memory.start()
    for line in process.stdout:
        lines.append(line)
        if until_first is None and first in line:
            until_first = time.monotonic() - started
    process.wait()
    memory.over = True
    memory.join()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{''.join(lines)[-2000:]}")
    return lines, memory.most, until_first


def torchrun(ranks):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(20000 + os.getpid() % 20000)]


def run_torch(peer, options, environment):
    command = [*torchrun(options.ranks), os.path.abspath(__file__), "--worker", peer, "--model", options.model, "--dtype", options.dtype,
               "--steps", str(options.steps)]
    lines, most, first = run_command(command, "--worker", environment, FIRST)
    return json.loads(next(line for line in lines if line.startswith("["))), most, first


def run_simple_fsdp(_, options, environment):
    size, rows, length = {"125m": "mid", "debug": "debug"}[options.model], *MODELS[options.model][1:]
    command = [*torchrun(options.ranks), options.simple_fsdp, "--mode", "simplefsdp", "--bucket", "block", "--size", size, "--batch", str(rows),
               "--seq", str(length), "--param-dtype", {"float32": "fp32", "bfloat16": "bf16"}[options.dtype], "--warmup", str(SKIPPED), "--steps",
               str(options.steps - SKIPPED), "--count", "0", "--threads", "1"]
    lines, most, _ = run_command(command, "--warmup", environment, "RESULT")
    found = json.loads(next(line for line in lines if line.startswith("RESULT "))[7:])
    # The steps that are skipped stand for those of the warm-up, which it does not print.
    return [0.0] * SKIPPED + [t / 1e3 for t in found["times"]], most, found["import_s"] + found["build_s"] + found["first_step_s"]


def run_ours(peer, options, environment):
    args, rows, length = MODELS[options.model]
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "tokens.bin")
        with open(data, "wb") as file:
            array.array("H", random.Random(0).choices(range(args["vocab_size"]), k=200000)).tofile(file)
        command = [options.sfsdp, "launch", "-n", str(options.ranks), "--", "train", "--model.name", "llama3", "--model.flavor", "debugmodel",
                   "--training.dataset", "tokens", "--training.dataset_path", data, "--training.seq_len", str(length),
                   "--training.local_batch_size", str(rows), "--training.steps", str(options.steps), "--metrics.log_freq", "1",
                   "--training.mixed_precision_param", options.dtype, "--job.dump_folder", folder, *OURS[peer]]
        for key, value in args.items():
            command += [f"--model.args.{key}", str(value)]
        _, most, first = run_command(command, "--job.dump_folder", environment, "step:  1 ")
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            found = [json.loads(line) for line in file]
    return [row["step_time_s"] for row in found if "loss" in row], most, first


def measure_start_up(contestants, options):
    """Prints seconds until the first step is over, less a steady one, with empty caches and with filled ones."""
    seconds = {name: [[], []] for _, name in contestants}
    for k in range(options.rounds):
        for i in range(len(contestants)):
            run, name = contestants[(i + k) % len(contestants)]
            with tempfile.TemporaryDirectory() as folder:
                caches = dict(ENVIRONMENT, XDG_CACHE_HOME=folder, TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "inductor"))
                for turn, found in enumerate(seconds[name]):
                    times, _, first = run(name, options, caches)
                    found.append(first - statistics.median(times[SKIPPED:]))
                    print(f"round {k + 1} {name}, caches {('empty', 'filled')[turn]}: {found[-1]:.2f} s", file=sys.stderr, flush=True)
    base = seconds[contestants[0][1]]
    print(f"{options.model}, {options.dtype}, {options.ranks} ranks: until the first step is over, less a steady step; ratios to {contestants[0][1]}\n")
    print("| | empty caches, s | of its time | filled caches, s | of its time |\n|---|---|---|---|---|")
    for _, name in contestants:
        cells = [f"{spread(found, 2)} | {spread([a / b for a, b in zip(found, first)], 3)}" for found, first in zip(seconds[name], base)]
        print(f"| {name} | {' | '.join(cells)} |")
    return seconds


def idle(command, word):
    """PSS of a process that has loaded the library alone."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, cwd=ROOT)
    memory = Memory(os.getpid(), word)
    memory.start()
    process.wait()
    memory.over = True
    memory.join()
    return memory.most


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="125m", choices=MODELS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--peers", default="fsdp2,ddp")
    parser.add_argument("--ours", default="planned,reference")
    parser.add_argument("--sfsdp", default=os.path.join(ROOT, "build/release/sfsdp"))
    parser.add_argument("--simple_fsdp", help="script of the contestant simple_fsdp")
    parser.add_argument("--start_up", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch_worker(options.worker, options.model, options.dtype, options.steps)
        return
    if "simple_fsdp" in options.peers and not options.simple_fsdp:
        parser.error("the contestant simple_fsdp is a program of others: name its script with --simple_fsdp")
    contestants = [(run_simple_fsdp if p == "simple_fsdp" else run_torch, p) for p in options.peers.split(",") if p]
    contestants += [(run_ours, p) for p in options.ours.split(",") if p]
    if options.start_up:
        seconds = measure_start_up(contestants, options)
        if options.out:
            with open(options.out, "w") as file:
                json.dump(dict(options=vars(options), seconds=seconds), file, indent=1)
        return
    base = idle([sys.executable, "-c", "import ctypes, importlib.util as u, time; "
                 "ctypes.CDLL(u.find_spec('torch').submodule_search_locations[0] + '/lib/libtorch_cpu.so'); time.sleep(2)"], "time.sleep")
    times, memory = {name: [] for _, name in contestants}, {name: 0.0 for _, name in contestants}
    for k in range(options.rounds):
        for i in range(len(contestants)):
            run, name = contestants[(i + k) % len(contestants)]
            seconds, most, _ = run(name, options, ENVIRONMENT)
            times[name].append(statistics.median(seconds[SKIPPED:]))
            memory[name] = max(memory[name], most - base)
            print(f"round {k + 1} {name}: {times[name][-1]:.3f} s, {most:.0f} MiB", file=sys.stderr, flush=True)
    first = contestants[0][1]
    print(f"{options.model}, {options.dtype}, {options.ranks} ranks; ratios to {first}, round by round\n")
    print("| | step, s | of its time | memory, MiB | of its memory |\n|---|---|---|---|---|")
    for _, name in contestants:
        ratios = [a / b for a, b in zip(times[name], times[first])]
        print(f"| {name} | {spread(times[name], 3)} | {spread(ratios, 3)} | {memory[name]:.0f} | {memory[name] / memory[first]:.2f} |")
    if options.out:
        with open(options.out, "w") as file:
            json.dump(dict(options=vars(options), times=times, memory=memory), file, indent=1)


if __name__ == "__main__":
    main()
