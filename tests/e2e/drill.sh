#!/usr/bin/env bash
# Thirty kills in 200 steps, of one rank or of all at once, at random moments while they start, train and save asynchronously;
# beside them ranks are stopped and asked to end. `launch --max-restarts` brings the run back each time, and its losses are
# those of a run that nothing happened to, bit for bit. A kill counts when the launcher has restarted the ranks for it.
# Takes 90 s alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
exec python3 - "$dir" <<'PY'
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


def furthest(): return max((row["step"] for row in rows("drilled")), default=0)


def printed():
    """Step and loss of each line that the drilled run has printed; also of steps that were taken again later."""
    return re.findall(r"step: +(\d+)  loss: +(\S+)", open(f"{folder}/log").read())


def kills_told():
    """As the launcher has counted them: by restarts, the killed rank is the first that failed."""
    return len(re.findall(r"launch: restart \d+ of \d+, as rank \d+ was ended by SIGKILL", open(f"{folder}/log").read()))


def ranks_of(launcher):
    try: return [int(pid) for pid in open(f"/proc/{launcher}/task/{launcher}/children").read().split()]
    except FileNotFoundError: return []


def fail(why):
    print(why)
    print("".join(open(f"{folder}/log").readlines()[-40:]))
    sys.exit(1)


def wait_until(holds, what):
    end = time.monotonic() + 120
    while not holds():
        if time.monotonic() > end: fail(f"for 120 s: {what}")
        time.sleep(0.002)


def start():
    return subprocess.Popen(command("drilled"), stdout=log, stderr=log, env=environment)


with open(f"{folder}/log", "a") as log:
    if subprocess.run(command("undisturbed"), stdout=log, stderr=log, env=environment).returncode != 0:
        fail("the undisturbed run has failed")

    others = [signal.SIGTERM] * 4 + [signal.SIGSTOP] * 4
    kinds = [signal.SIGKILL] * kills + others
    random.shuffle(kinds)
    log.truncate(0)
    launcher, stops, best, number, while_starting = start(), 0, 0, 0, False
    while kinds:
        kind, told = kinds[-1], kills_told()
        wait_until(lambda: len(ranks_of(launcher.pid)) == ranks or launcher.poll() is not None, "no ranks start")
        if launcher.poll() is not None: fail(f"the launcher has ended with {launcher.returncode} before fault {number}")
        victims = ranks_of(launcher.pid)
        while_starting = kind == signal.SIGKILL and number % 5 == 4 and not while_starting
        if while_starting:
            time.sleep(random.random())
        else:
            # Between two saves, in one, or right after: a few steps further than ever before, and some milliseconds.
            best = max(best, furthest())
            goal = min(best + random.randint(1, 6), steps - len(kinds))
            wait_until(lambda: furthest() >= goal or launcher.poll() is not None, f"step {goal} is not reached")
            time.sleep(random.random() * 0.02)
        number += 1
        group = kind == signal.SIGKILL and number % 6 == 0
        try:
            for pid in victims if group else [random.choice(victims)]: os.kill(pid, kind)
        except ProcessLookupError: continue  # once more, at the ranks that come next
        if kind == signal.SIGTERM:
            if launcher.wait(120) not in (75, 143): fail(f"SIGTERM to a rank ends with {launcher.returncode}")
            stops += launcher.returncode == 75
            launcher = start()  # as Slurm would
        else:
            wait_until(lambda: not set(victims) & set(ranks_of(launcher.pid)), "the ranks are not restarted")
        if kind != signal.SIGKILL or kills_told() == told + 1: kinds.pop()
    if launcher.wait(300) != 0: fail(f"the drilled run ends with {launcher.returncode}")

expected = {row["step"]: (row["loss"], row["grad_norm"], row["lr"], row["tokens"]) for row in rows("undisturbed")}
got = {row["step"]: (row["loss"], row["grad_norm"], row["lr"], row["tokens"]) for row in rows("drilled")}
for step, loss in printed():
    if f"{expected[int(step)][0]:.5f}" != loss: fail(f"step {step}: {loss}, expected {expected[int(step)][0]}")
if len(expected) != steps or got != expected:
    fail(f"{len(expected)} and {len(got)} steps, {sum(got.get(k) != v for k, v in expected.items())} differ")
again = len(printed()) - steps
print(f"{kills_told()} kills, {len(others)} other faults, {stops} clean stops, {again} steps taken again")
if kills_told() < kills or stops == 0 or again == 0: fail("the drill has drilled too little")
PY
