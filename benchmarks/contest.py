# SPDX-License-Identifier: BSD-3-Clause
"""What peers.py and exported_step.py share: environment and cores of the contestants, their memory, their numbers, tables."""
import array, json, os, random, statistics, subprocess, sys, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULT = "RESULT "
# A malloc that keeps its pages, for runs that are timed: else PyTorch's time is that of the kernel that takes pages back and clears them.
KEEPS_PAGES = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="34359738368", MALLOC_TOP_PAD_="67108864", MALLOC_ARENA_MAX="1",
                   GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
# PyTorch's own norm of GPT-2's gradients in float32 is 4e-4 from that in float64, as it adds up 38 million squares one by one.
LOSS_BAR, NORM_BAR = 0.01, 0.05


def environment(threads, keeps_pages):
    """Of a contestant's processes. Not keeps_pages: malloc as the system has it, for runs that measure memory."""
    usual = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_") and key != "GLIBC_TUNABLES"}
    return dict(usual, OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo", TORCHINDUCTOR_COMPILE_THREADS="2", TRANSFORMERS_OFFLINE="1",
                HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", **(KEEPS_PAGES if keeps_pages else {}))


def pin(count):
    """This process, and so all that it starts, runs on the first `count` cores that it may use. Returns them."""
    cores = sorted(os.sched_getaffinity(0))
    if count < 1 or count > len(cores):
        raise SystemExit(f"--cores {count}: expected 1 to {len(cores)}, the cores that this process may use")
    os.sched_setaffinity(0, cores[:count])
    return cores[:count]


def torchrun(ranks):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(20000 + os.getpid() % 20000)]


def write_tokens(path, vocabulary, count=200000):
    """Small ids more often than large ones, so that a model learns something in a few steps: an update that is another shows in the loss."""
    numbers = random.Random(0)
    with open(path, "wb") as file:
        array.array("H", (int(vocabulary * numbers.random() ** 3) for _ in range(count))).tofile(file)


def row_numbers(steps, rank, ranks, rows):
    """Of the data, for each step: those that sfsdp's loader gives this rank without shuffling."""
    return [range((step * ranks + rank) * rows, (step * ranks + rank + 1) * rows) for step in range(steps)]


def token_batches(path, steps, rank, ranks, rows, length):
    """[rows, length + 1] for each step."""
    import torch
    ids = array.array("H")
    with open(path, "rb") as file:
        ids.frombytes(file.read())
    samples = (len(ids) - 1) // length
    first = [[row % samples * length for row in numbers] for numbers in row_numbers(steps, rank, ranks, rows)]
    return [torch.tensor([ids[f : f + length + 1].tolist() for f in own]) for own in first]


class Memory(threading.Thread):
    """Samples the PSS of the processes below this one whose command line has `word`, every 20 ms; most: of any of them, in MiB."""

    def __init__(self, word):
        super().__init__(daemon=True)
        self.word, self.most, self.over = word, 0.0, False

    def run(self):
        while not self.over:
            for pid in self.below(os.getpid()):
                try:
                    with open(f"/proc/{pid}/cmdline") as file:
                        if self.word not in file.read():
                            continue
                    with open(f"/proc/{pid}/smaps_rollup") as file:
                        pss = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
                    self.most = max(self.most, pss / 1024)
                except (OSError, StopIteration):  # it has ended
                    pass
            time.sleep(0.02)

    def below(self, pid):
        found = []
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            pass
        return found + [p for child in found for p in self.below(child)]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.join()


def run_command(command, env, first=""):
    """The lines that it printed, and seconds until it printed `first`, None if never or not asked for."""
    started, until_first, lines = time.monotonic(), None, []
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    for line in process.stdout:
        lines.append(line)
        if first and until_first is None and first in line:
            until_first = time.monotonic() - started
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)}\n{''.join(lines)[-6000:]}")
    return lines, until_first


def leave():
    """The end of a worker in Python, all ranks at once. PyTorch's threads now and then end a process that leaves the usual way with SIGABRT."""
    import torch.distributed as dist
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def result_of(lines):
    """What a worker in Python printed: a dict of seconds, losses and norms, a number of each for each step."""
    return json.loads(next(line for line in lines if line.startswith(RESULT))[len(RESULT):])


def metrics_of(folder):
    """The same of a run of sfsdp."""
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        rows = [row for row in map(json.loads, file) if "loss" in row]
    return dict(seconds=[row["step_time_s"] for row in rows], losses=[row["loss"] for row in rows], norms=[row["grad_norm"] for row in rows])


def check_same(found, steps, loss_bar=LOSS_BAR, norm_bar=NORM_BAR):
    """Prints loss and gradient norm of the contestants' first and last step, {name: dict of losses and norms}, and ends the program if one
    computes something else than the first of them: where a loss is more than loss_bar from the first one's, or a norm more than norm_bar."""
    names = [name for name, numbers in found.items() if numbers["losses"]]
    for name in names:
        losses, norms = found[name]["losses"], found[name]["norms"]
        print(f"{name}: loss {losses[0]:.5f} to {losses[-1]:.5f}, gradient norm {norms[0]:.4f} to {norms[-1]:.4f}", file=sys.stderr, flush=True)
        if len(losses) != steps or len(norms) != steps:
            raise SystemExit(f"{name}: losses of {len(losses)} and norms of {len(norms)} steps\n  expected {steps} of each")
    for name in names[1:]:
        for what, bar in (("losses", loss_bar), ("norms", norm_bar)):
            for step, (ours, theirs) in enumerate(zip(found[name][what], found[names[0]][what]), 1):
                if not abs(ours - theirs) <= bar * abs(theirs):  # "not" as one of them may be no number
                    raise SystemExit(f"{name} and {names[0]} do not compute the same: {what} of step {step} are {ours} and {theirs}\n"
                                     f"  expected a difference of {100 * bar:g} % at most")


def spread(values, digits=3, unit=""):
    return f"{statistics.median(values):.{digits}f}{unit} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def ratios(values, others):
    """Round by round."""
    return [a / b for a, b in zip(values, others)]
