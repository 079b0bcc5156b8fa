#!/usr/bin/env bash
# The live line stands on a terminal alone, and leaves nothing there: what a terminal shows in the end is, line for line and
# but for colours, what a pipe gets. Each console line is TorchTitan's, then eta.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$dir" <<'PY'
import os, pty, re, subprocess, sys
folder = sys.argv[1]
sfsdp = "build/release/sfsdp"
flags = ["train", "--config", "configs/llama3_debug.toml", "--training.steps", "30", "--training.seq_len", "32",
           "--model.args.n_layers", "1", "--metrics.log_freq", "10"]

def on_terminal(name, out_is_terminal, launcher=()):
    """What the terminal gets, as bytes; and what standard output gets where that is a file."""
    master, slave = pty.openpty()
    with open(f"{folder}/{name}.out", "wb") as file:
        process = subprocess.Popen([sfsdp, *launcher, *flags, "--job.dump_folder", f"{folder}/{name}"], stdin=subprocess.DEVNULL,
                                   stdout=slave if out_is_terminal else file, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        seen += piece
    assert process.wait() == 0, seen
    return seen.decode(), open(f"{folder}/{name}.out").read()

def screen(text):
    """The lines that stay: a carriage return writes over, ESC[K erases to the end."""
    lines, line, at = [], "", 0
    for token in re.findall(r"\r\n|\r|\033\[K|\033\[[0-9;]*m|.", text, re.S):
        if token == "\r\n":
            lines.append(line)
            line, at = "", 0
        elif token == "\r":
            at = 0
        elif token == "\033[K":
            line = line[:at]
        elif not token.startswith("\033"):
            line = line[:at] + token + line[at + 1:]
            at += 1
    return lines + ([line] if line else [])

steady = lambda lines: [re.sub(r"[0-9][0-9:.,]*", "#", line) for line in lines if not line.startswith("Peak for mfu")]
plain = subprocess.run([sfsdp, *flags, "--job.dump_folder", f"{folder}/plain"], capture_output=True, text=True, check=True)
assert "\r" not in plain.stdout + plain.stderr and "\033" not in plain.stdout + plain.stderr, plain
reported = [line for line in plain.stdout.splitlines() if line.startswith("step:")]
line = re.compile(r"step: [ \d]\d  loss: {1,2}\d+\.\d{5}  grad_norm: {1,3}\d+\.\d{4}  memory: {1,2}\d+\.\d\dGiB\(\d+\.\d\d%\)  tps: [\d,]+"
                  r"  tflops: [\d,]+\.\d\d  mfu: \d+\.\d\d%  eta: \d+:\d\d:\d\d")
assert len(reported) == 4 and all(line.fullmatch(text) for text in reported), reported

seen, _ = on_terminal("both", True)
live = r"\rstep \d+/30  loss [\d.]+  tps [\d,]+  eta \d+:\d\d:\d\d\033\[K"
assert len(re.findall(live, seen)) >= 2, seen
words = lambda lines: [re.sub(r" +", " ", text) for text in steady(lines)]
assert words(screen(seen)) == words(plain.stdout.splitlines()), (screen(seen), plain.stdout)

seen, out = on_terminal("err", False)
assert "\r" not in out and "\033" not in out and out.count("step:") == 4, out
assert "\rstep " in seen and screen(seen) in ([], [""]), seen

seen, _ = on_terminal("launched", True, ["launch", "-n", "2", "--log-rank", "0", "--"])  # by way of a pipe
assert len(re.findall(live, seen)) >= 2, seen
assert not any("/30" in text for text in screen(seen)) and sum(text.startswith("step:") for text in screen(seen)) == 4, screen(seen)
seen, _ = on_terminal("both_shown", True, ["launch", "-n", "2", "--"])
assert "/30  loss" not in seen, seen
PY
