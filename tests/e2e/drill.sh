#!/usr/bin/env bash
# Thirty kills, of one rank or of all at once, at random moments while they start, train and save asynchronously; beside them
# ranks are stopped and asked to end. `launch --max-restarts` brings a run of 200 steps back each time, and its losses are
# those of a run that nothing happened to, bit for bit. A kill counts when the launcher has restarted the ranks for it. How
# many steps are done until one strikes is up to the machine: the next run takes what is left when one gets to its end.
# Takes 90 s alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$dir" <<'PY'
import json, os, random, re, signal, subprocess, sys, time

folder, sfsdp, ranks, steps, kills = sys.argv[1], "build/release/sfsdp", 2, 200, 30
random.seed(20)
environment = dict(os.environ, OMP_NUM_THREADS="1")


def command(name):
    return [sfsdp, "launch", "-n", str(ranks), "--max-restarts", "100", "--", "train", "--job.config_file",
            "configs/llama3_debug.toml", "--training.seq_len", "16", "--training.local_batch_size", "1",
            "--model.args.n_layers", "1", "--training.dataset_max_bytes", "100000", "--training.steps", str(steps),
            "--job.dump_folder", f"{folder}/{name}", "--checkpoint.enable", "--checkpoint.interval", "3",
            "--checkpoint.async_mode", "async", "--checkpoint.keep_latest_k", "2"]


def rows(name):
    """The lines of metrics.jsonl; the last one of a killed rank may be cut off."""
    found = []
    try:
        for line in open(f"{folder}/{name}/metrics.jsonl"):
            try: found.append(json.loads(line))
            except json.JSONDecodeError: pass
    except FileNotFoundError: pass
    return found


def furthest(name): return max((row["step"] for row in rows(name)), default=0)


def told(begin=0):
    """What launchers and ranks have printed, from a byte on."""
    return open(f"{folder}/log", "rb").read()[begin:].decode()


def restarts(): return len(re.findall(r"launch: restart \d+ of", told()))


def kills_told():
    """As the launcher has counted them: by restarts, the killed rank is the first that failed."""
    return len(re.findall(r"launch: restart \d+ of \d+, as rank \d+ was ended by SIGKILL", told()))


def fail(why):
    print(why, *told().splitlines()[-40:], sep="\n")
    sys.exit(1)


def wait_until(holds, what):
    end = time.monotonic() + 120
    while not holds():
        if time.monotonic() > end: fail(f"for 120 s: {what}")
        time.sleep(0.002)


def start(name): return subprocess.Popen(command(name), stdout=log, stderr=log, env=environment)


def end_of(launcher):
    wait_until(lambda: launcher.poll() is not None, "the launcher does not end")
    return launcher.returncode


def children(launcher):
    try: return [int(pid) for pid in open(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read().split()]
    except FileNotFoundError: return []


def ranks_of(launcher, but=()):
    """Waits for as many as there should be, none of `but`; none if the launcher has ended."""
    pids = []
    def started():
        pids[:] = children(launcher)
        return len(pids) == ranks and not set(pids) & set(but)
    wait_until(lambda: launcher.poll() is not None or started(), "no ranks start")
    return pids if launcher.returncode is None else []


def wait_for_a_moment(launcher, name, best):
    """Between two saves, in one, or right after: a few steps further than ever before, and some milliseconds."""
    goal = best + random.randint(1, 6)
    wait_until(lambda: furthest(name) >= goal or launcher.poll() is not None, f"step {goal} is not reached")
    time.sleep(random.random() * 0.02)


def drill(name, faults):
    """A run to its end. Takes the faults off the list that have come to pass; how often was a clean stop asked for and made?"""
    launcher, best, stops, number, while_starting = start(name), 0, 0, 0, False
    while faults and (victims := ranks_of(launcher)):
        kind, restarts_before, kills_before = faults[-1], restarts(), kills_told()
        while_starting = kind == signal.SIGKILL and number % 5 == 4 and not while_starting
        best = max(best, furthest(name))
        if while_starting: time.sleep(random.random())
        else: wait_for_a_moment(launcher, name, best)
        if restarts() != restarts_before: fail("ranks were restarted, and no fault had struck")
        number += 1
        group = kind == signal.SIGKILL and number % 6 == 0
        try:
            for pid in victims if group else [random.choice(victims)]: os.kill(pid, kind)
        except ProcessLookupError: pass  # the run is at its end
        if kind == signal.SIGTERM:
            if end_of(launcher) == 75:
                faults.pop()
                stops += 1
                launcher = start(name)  # as Slurm would
        elif ranks_of(launcher, but=victims):
            if restarts() != restarts_before + 1: fail(f"{restarts() - restarts_before} restarts for one fault")
            # If a rank that waited for the killed one has ended before it, the fault is to come once more.
            if kind == signal.SIGSTOP or kills_told() == kills_before + 1: faults.pop()
    if end_of(launcher) != 0: fail(f"the drilled run ends with {launcher.returncode}")
    return stops


def compare(name, begin):
    """How many steps were taken again."""
    expected, got = ({row["step"]: [row[key] for key in ("loss", "grad_norm", "lr", "tokens")] for row in rows(of)}
                     for of in ("undisturbed", name))
    printed = re.findall(r"step: +(\d+)  loss: +(\S+)", told(begin))  # also of steps that were taken again later
    for step, loss in printed:
        if f"{expected[int(step)][0]:.5f}" != loss: fail(f"step {step}: {loss}, expected {expected[int(step)][0]}")
    if len(expected) != steps or got != expected:
        fail(f"{len(expected)} and {len(got)} steps, {sum(got.get(k) != v for k, v in expected.items())} differ")
    return len(printed) - steps


with open(f"{folder}/log", "a") as log:
    if subprocess.run(command("undisturbed"), stdout=log, stderr=log, env=environment).returncode != 0:
        fail("the undisturbed run has failed")
    others = [signal.SIGTERM] * 4 + [signal.SIGSTOP] * 4
    faults = [signal.SIGKILL] * kills + others
    random.shuffle(faults)
    log.truncate(0)
    runs = stops = again = 0
    while faults and runs < 20:
        runs, begin = runs + 1, os.path.getsize(f"{folder}/log")
        stops += drill(f"drilled{runs}", faults)
        again += compare(f"drilled{runs}", begin)
print(f"{kills_told()} kills, {len(others)} other faults, {stops} clean stops, {again} steps taken again in {runs} runs")
if faults or stops == 0 or again == 0: fail(f"the drill has drilled too little: {len(faults)} faults are left")
PY
