#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One training step here and in PyTorch, on the same machine, in one run: time, memory, and what a step takes at least.

  .venv/bin/python benchmarks/peers.py [--model 125m|debug|gpt2] [--dtype float32|bfloat16] [--ranks 2] [--threads 1] [--cores N]
                                       [--tp 1] [--rounds 3] [--steps 8] [--memory] [--bound]
                                       [--peers fsdp2,fsdp2_compile,ddp,simple_fsdp,tp,tp_compile]
                                       [--ours planned,planned_tcp,planned_aten,planned_by_processor,reference]
                                       [--simple_fsdp SCRIPT] [--start_up] [--out FILE.json]

125m and debug are Llamas, gpt2 is GPT-2 of 124M parameters. Each rank is a process of --threads threads; all contestants are bound to the same
cores, the first --cores of those that this process may use, a core for each thread if not said. They run in turn, in an order that turns round
in each round. A run counts as the median of its steps after the third; ratios are of a round, given as median [least, most].

Same sizes, initial weights, batches, optimizer (AdamW, fused in PyTorch), clipping and precision: bfloat16 is parameters in float32, computed in
bfloat16, reduced in float32. sfsdp starts from a Hugging Face folder of PyTorch's weights, and both read one file of random tokens, small ids more
often than large ones. Loss and gradient norm of each step are held against the first contestant's: the program ends at a loss that differs by more
than 1 %, or a norm by more than 5 %. Where time is measured both sides have a malloc that keeps its pages.

--tp N: so many ranks have the same sequences and parts of each product, with sequence parallelism and a loss over parts of the vocabulary, on both
sides; tp and tp_compile are PyTorch's own, parallelize_module of DTensor by the plan of TorchTitan's Llama, the latter with the model compiled. The
sequences of a step are as many as without: a group of N ranks has N times those of a rank. Ranks beyond a group shard parameters over groups (FSDP2).

--memory: one more run of each, with malloc as the system has it: the most of a rank's proportional set size (PSS), sampled every 20 ms from its
start on, less that of as many processes that have loaded LibTorch and done nothing. With --rounds 0 nothing else is measured.

--bound: benchmarks/bound.py in each round; steps are set against the bound of their round. It takes a thread a rank.

simple_fsdp is the Python SimpleFSDP under torch.compile with a bucket a block. It is a program of others, SCRIPT, with weights and data of its own,
whose losses nothing checks: it takes --mode, --bucket, --size, --batch, --seq, --param-dtype, --warmup, --steps and --count, and prints RESULT and a
JSON object with times (ms), import_s, build_s and first_step_s.

--start_up prints instead, for each contestant, the seconds from the start of its processes until its first step is over, less a steady step: with
empty caches, and once more with those that the first run left; each makes initial weights of its own. For simple_fsdp it is import_s + build_s +
first_step_s, without the launcher's.

Needs torch and safetensors in this Python, and build/release/sfsdp. Run it alone.
"""
import argparse, contextlib, functools, json, os, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import contest  # noqa: E402
from contest import ROOT, ratios, spread  # noqa: E402
from peer_models import LLAMA, MODELS, flags_of, make_model, write_folder  # noqa: E402

SKIPPED = 3
FIRST = "first step done"
LR = 1e-3
PEERS = ("fsdp2", "fsdp2_compile", "ddp", "simple_fsdp", "tp", "tp_compile")
OURS = {
    "planned": ["--exec.executor", "planned"],
    "planned_tcp": ["--exec.executor", "planned", "--comm.shared_memory", "false"],
    **{f"planned_{products}": ["--exec.executor", "planned", "--exec.products", products] for products in ("aten", "by_processor", "onednn", "openblas")},
    "reference": ["--exec.executor", "reference"],
}


def wrap(peer, model, kind, half, mesh):
    """Returns the module that is called. mesh: of groups that have the same sequences, and of ranks in one."""
    import torch
    if peer == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    blocks = model.layers if kind == LLAMA else model.h
    if mesh["tp"].size() > 1:
        cut(model, mesh["tp"])
    if peer == "fsdp2_compile":
        for i, block in enumerate(blocks):
            blocks[i] = torch.compile(block, fullgraph=True)
    if peer.startswith("tp") and mesh["dp"].size() == 1 and not half:  # nothing to shard; with half it is what computes in bfloat16
        return torch.compile(model) if peer == "tp_compile" else model
    policy = MixedPrecisionPolicy(**(dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else {}))
    shard = functools.partial(fully_shard, mesh=mesh["dp"], mp_policy=policy)
    if kind == LLAMA:
        shard(model.tok_embeddings)
    for block in blocks:
        shard(block, reshard_after_forward=mesh["dp"].size() > 1 or not peer.startswith("tp"))
    if kind == LLAMA:
        shard([model.norm, model.output], reshard_after_forward=False)
    return shard(model)  # of GPT-2 embeddings too, which are also the output


def cut(model, mesh):
    """The plan of TorchTitan's Llama. Rows are gathered once for wq, wk and wv, and once for w1 and w3: by the norm before them."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, RowwiseParallel, SequenceParallel, parallelize_module
    rows = Shard(1)
    parallelize_module(model, mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1), use_local_output=False)})
    whole_rows = PrepareModuleOutput(output_layouts=rows, desired_output_layouts=Replicate(), use_local_output=False)
    for block in model.layers:
        norms = ("attention_norm", "ffn_norm")
        parallelize_module(block, mesh, {norm: SequenceParallel() for norm in norms})
        parallelize_module(block, mesh, {norm: whole_rows for norm in norms})
        parallelize_module(block, mesh, {name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1", "w3")})
        parallelize_module(block, mesh, {name: RowwiseParallel(output_layouts=rows) for name in ("wo", "w2")})


def torch_worker(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel
    kind, _, rows, length = MODELS[options.model]
    peer, half = options.worker, options.dtype == "bfloat16"
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    groups = options.ranks // options.tp
    mesh = init_device_mesh("cpu", (groups, options.tp), mesh_dim_names=("dp", "tp"))
    model = make_model(options.model, options.own_weights)

    def loss_of(logits, labels):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    if peer == "fsdp2_compile":  # over tp compiled it takes longer
        loss_of = torch.compile(loss_of)
    wrapped = wrap(peer, model, kind, half, mesh)
    over_parts = loss_parallel if options.tp > 1 else contextlib.nullcontext
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    batches = contest.token_batches(options.tokens, options.steps, mesh.get_local_rank("dp"), groups, rows * options.tp, length)
    found = dict(seconds=[], losses=[], norms=[])
    for step, ids in enumerate(batches):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half and peer == "ddp"):
            logits = wrapped(ids[:, :-1])
        with over_parts():
            loss = loss_of(logits, ids[:, 1:])
            del logits
            loss.backward()
        if options.tp > 1:
            loss = loss.full_tensor()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        found["seconds"].append(time.perf_counter() - begin)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found["losses"].append(mean.item() / dist.get_world_size())
        found["norms"].append((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item())
        if step == 0 and dist.get_rank() == 0:
            print(FIRST, flush=True)
    if dist.get_rank() == 0:
        print(contest.RESULT + json.dumps(found), flush=True)
    contest.leave()


# A contestant: from options and environment to seconds, losses and norms of its steps, and seconds until the first one was over.
def run_torch(peer, options, environment):
    command = [*contest.torchrun(options.ranks), os.path.abspath(__file__), "--worker", peer, "--model", options.model, "--dtype", options.dtype,
               "--steps", str(options.steps), "--threads", str(options.threads), "--tokens", options.tokens, "--ranks", str(options.ranks),
               "--tp", str(options.tp)]
    command += ["--own_weights"] * options.start_up
    lines, first = contest.run_command(command, environment, FIRST)
    return contest.result_of(lines), first


def run_simple_fsdp(options, environment):
    size, rows, length = {"125m": "mid", "debug": "debug"}[options.model], *MODELS[options.model][2:]
    command = [*contest.torchrun(options.ranks), options.simple_fsdp, "--mode", "simplefsdp", "--bucket", "block", "--size", size, "--batch", str(rows),
               "--seq", str(length), "--param-dtype", {"float32": "fp32", "bfloat16": "bf16"}[options.dtype], "--warmup", str(SKIPPED), "--steps",
               str(options.steps - SKIPPED), "--count", "0", "--threads", str(options.threads)]
    found = contest.result_of(contest.run_command(command, environment)[0])
    # The steps that are skipped stand for those of the warm-up, which it does not print.
    seconds = [0.0] * SKIPPED + [t / 1e3 for t in found["times"]]
    return dict(seconds=seconds, losses=[], norms=[]), found["import_s"] + found["build_s"] + found["first_step_s"]


def run_ours(peer, options, environment):
    _, _, rows, length = MODELS[options.model]
    with tempfile.TemporaryDirectory() as folder:
        command = [options.sfsdp, "launch", "-n", str(options.ranks), "--", "train", *flags_of(options.model), "--training.dataset", "tokens",
                   "--training.dataset_path", options.tokens, "--training.shuffle", "never", "--training.seq_len", str(length),
                   "--training.local_batch_size", str(rows * options.tp), "--training.steps", str(options.steps),
                   "--training.mixed_precision_param", options.dtype, "--optimizer.lr", str(LR), "--lr_scheduler.warmup_steps", "0",
                   "--lr_scheduler.decay_ratio", "0", "--metrics.log_freq", "1", "--job.dump_folder", folder, *OURS[peer],
                   "--parallelism.tensor_parallel_degree", str(options.tp)]
        if not options.start_up:
            command += ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", options.weights]
        _, first = contest.run_command(command, environment, "step:  1 ")
        return contest.metrics_of(folder), first


WORDS = {run_torch: "--worker", run_simple_fsdp: "--warmup", run_ours: "--job.dump_folder"}  # in the command lines of their ranks


def contestants_of(options):
    """{name: (function of options and environment, word in the command line of its ranks)}"""
    found = {}
    for name in filter(None, options.peers.split(",")):
        if name == "simple_fsdp":
            found[name] = run_simple_fsdp, WORDS[run_simple_fsdp]
        else:
            found[name] = functools.partial(run_torch, name), WORDS[run_torch]
    for name in filter(None, options.ours.split(",")):
        found[name] = functools.partial(run_ours, name), WORDS[run_ours]
    return found


def in_turn(contestants, number):
    names = list(contestants)
    turn = number % len(names)
    return names[turn:] + names[:turn]


def measure_start_up(contestants, options):
    """Prints seconds until the first step is over, less a steady one, with empty caches and with filled ones."""
    seconds = {name: [[], []] for name in contestants}
    for k in range(options.rounds):
        for name in in_turn(contestants, k):
            with tempfile.TemporaryDirectory() as folder:
                caches = dict(contest.environment(options.threads, True), XDG_CACHE_HOME=folder, TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "inductor"))
                for turn, found in enumerate(seconds[name]):
                    numbers, first = contestants[name][0](options, caches)
                    found.append(first - statistics.median(numbers["seconds"][SKIPPED:]))
                    print(f"round {k + 1} {name}, caches {('empty', 'filled')[turn]}: {found[-1]:.2f} s", file=sys.stderr, flush=True)
    base = next(iter(seconds.values()))
    print(f"{title(options)}: until the first step is over, less a steady step; ratios to {next(iter(seconds))}\n")
    print("| | empty caches, s | of its time | filled caches, s | of its time |\n|---|---|---|---|---|")
    for name, own in seconds.items():
        cells = [f"{spread(found, 2)} | {spread(ratios(found, first))}" for found, first in zip(own, base)]
        print(f"| {name} | {' | '.join(cells)} |")
    return dict(start_up=seconds)


def measure_time(contestants, options):
    """Seconds of each contestant in each round; the bound of each round, empty if not asked for."""
    times, bounds = {name: [] for name in contestants}, []
    for k in range(options.rounds):
        numbers = {}
        for name in in_turn(contestants, k):
            numbers[name], _ = contestants[name][0](options, contest.environment(options.threads, True))
            times[name].append(statistics.median(numbers[name]["seconds"][SKIPPED:]))
            print(f"round {k + 1} {name}: {times[name][-1]:.3f} s", file=sys.stderr, flush=True)
        contest.check_same({name: numbers[name] for name in contestants}, options.steps)
        if options.bound:
            import bound
            parts = bound.measure(options.model, options.dtype, options.ranks)[0]
            bounds.append(sum(parts.values()))
            text = ", ".join(f"{part} {1e3 * seconds:.0f} ms" for part, seconds in parts.items())
            print(f"round {k + 1} at least {bounds[-1]:.3f} s: {text}", file=sys.stderr, flush=True)
    return times, bounds


def print_times(times, bounds, options):
    first = next(iter(times))
    print(f"{title(options)}; ratios to {first}, round by round\n")
    print(f"| | step, s | of its time |{' of the bound |' if bounds else ''}\n|---|---|---|{'---|' if bounds else ''}")
    for name, own in times.items():
        print(f"| {name} | {spread(own)} | {spread(ratios(own, times[first]))} |{f' {spread(ratios(own, bounds), 2)} |' if bounds else ''}")
    if bounds:
        print(f"| the bound | {spread(bounds)} | {spread(ratios(bounds, times[first]))} | |")
    print()


def idle_memory(ranks):
    """PSS of as many processes as there are ranks, which share the library's pages as ranks do, and have loaded it alone."""
    command = [sys.executable, "-c", "import ctypes, importlib.util as u, time; "
               "ctypes.CDLL(u.find_spec('torch').submodule_search_locations[0] + '/lib/libtorch_cpu.so'); print('loaded', flush=True); time.sleep(600)"]
    started = [subprocess.Popen(command, env=contest.environment(1, False), stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(ranks)]
    try:
        if not all(process.stdout.readline() for process in started):
            raise SystemExit("LibTorch could not be loaded by this Python")
        with contest.Memory("time.sleep") as memory:  # all have it now: one that ends leaves its share to the others
            time.sleep(0.5)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return memory.most


def measure_memory(contestants, options):
    base = idle_memory(options.ranks)
    found = {}
    for name, (run, word) in contestants.items():
        with contest.Memory(word) as memory:
            run(options, contest.environment(options.threads, False))
        found[name] = memory.most - base
        print(f"memory {name}: {memory.most:.0f} MiB, {base:.0f} of them LibTorch's", file=sys.stderr, flush=True)
    return found


def print_memory(found, options):
    first = next(iter(found))
    print(f"{title(options)}; the system's malloc; ratios to {first}\n\n| | memory, MiB | of its memory |\n|---|---|---|")
    for name, most in found.items():
        print(f"| {name} | {most:.0f} | {most / found[first]:.2f} |")
    print()


def title(options):
    axes = f", tp {options.tp}" if options.tp > 1 else ""
    return f"{options.model}, {options.dtype}{axes}, {options.ranks} ranks x {options.threads} threads on {options.cores} cores"


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="125m", choices=MODELS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", type=int)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--peers", help="if not said: fsdp2,ddp, and with --tp above 1 tp")
    parser.add_argument("--ours", default="planned,reference")
    parser.add_argument("--sfsdp", default=os.path.join(ROOT, "build/release/sfsdp"))
    parser.add_argument("--simple_fsdp", help="script of the contestant simple_fsdp")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--start_up", action="store_true")
    parser.add_argument("--out")
    for hidden in ("--worker", "--tokens", "--write"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--own_weights", action="store_true", help=argparse.SUPPRESS)
    return parser


def parse(parser):
    options = parser.parse_args()
    if options.peers is None:
        options.peers = "tp" if options.tp > 1 else "fsdp2,ddp"
    names = list(filter(None, options.peers.split(",")))
    kind, args = MODELS[options.model][:2]
    unknown = [name for name in names if name not in PEERS] + [name for name in filter(None, options.ours.split(",")) if name not in OURS]
    if unknown:
        parser.error(f"contestants {', '.join(unknown)}: expected of {', '.join(PEERS)} in --peers, of {', '.join(OURS)} in --ours")
    if options.tp < 1 or options.ranks % options.tp or (options.tp > 1 and (kind != LLAMA or args["n_kv_heads"] % options.tp)):
        parser.error(f"--tp {options.tp} with {options.ranks} ranks of {options.model}: expected a divisor of ranks and of its heads of keys, 1 for gpt2")
    wrong = [name for name in names if name.startswith("tp") != (options.tp > 1)]
    if wrong:
        parser.error(f"--tp {options.tp} with the contestants {', '.join(wrong)}: expected tp and tp_compile above 1, the others at 1")
    if "tp_compile" in names and (options.dtype != "float32" or options.ranks != options.tp):
        parser.error(f"the contestant tp_compile in {options.dtype} with {options.ranks} ranks: expected float32 and as many ranks as --tp, as "
                     "torch.compile takes no FSDP2, which casts and shards, with DTensor in it")
    if "simple_fsdp" in names and not options.simple_fsdp:
        parser.error("the contestant simple_fsdp is a program of others: name its script with --simple_fsdp")
    if "simple_fsdp" in names and options.model == "gpt2":
        parser.error("the contestant simple_fsdp has no gpt2: expected --model 125m or debug")
    if options.bound and options.tp > 1:
        parser.error(f"--bound with --tp {options.tp}: expected 1, the bound is of parameters that are gathered whole")
    if options.bound and options.threads != 1:
        parser.error(f"--bound with --threads {options.threads}: expected 1, the bound is of a rank of one thread")
    if options.steps <= SKIPPED:
        parser.error(f"--steps {options.steps}: expected more than {SKIPPED}, which do not count")
    return options


def measure(contestants, options):
    if options.start_up:
        return measure_start_up(contestants, options)
    times, bounds, memory = {}, [], {}
    if options.rounds:
        times, bounds = measure_time(contestants, options)
        print_times(times, bounds, options)
    if options.memory:
        memory = measure_memory(contestants, options)
        print_memory(memory, options)
    return dict(times=times, bounds=bounds, memory=memory)


def main():
    options = parse(make_parser())
    if options.worker:
        return torch_worker(options)
    if options.write:  # in a process of its own: this one loads no LibTorch, whose pages ranks would share with it
        return write_folder(options.model, options.write)
    options.cores = options.cores or min(options.ranks * options.threads, len(os.sched_getaffinity(0)))
    contest.pin(options.cores)
    with tempfile.TemporaryDirectory() as folder:
        options.tokens, options.weights = os.path.join(folder, "tokens.bin"), os.path.join(folder, "weights")
        contest.write_tokens(options.tokens, MODELS[options.model][1]["vocab_size"])
        if not options.start_up:
            contest.run_command([sys.executable, os.path.abspath(__file__), "--write", options.weights, "--model", options.model], dict(os.environ))
        found = measure(contestants_of(options), options)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(dict(options=vars(options), **found), file, indent=1)


if __name__ == "__main__":
    main()
