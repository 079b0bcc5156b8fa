#!/usr/bin/env bash
# Every shipped config loads, is captured, planned and simulated at its real size; what its head says of it is true.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
python3 - build/release/sfsdp <<'PY'
import glob, json, re, shlex, subprocess, sys
sfsdp = sys.argv[1]
configs = sorted(glob.glob("configs/*.toml"))
assert len(configs) >= 5, configs
line = re.compile(r"# +([\d.]+) (ms|s) a step, ([\d,]+) tokens/s per device, peak ([\d.]+) of ([\d.]+) GiB")
for config in configs:
    head = [l.strip() for l in open(config) if l.startswith("#")]
    at = next((i for i, l in enumerate(head) if l.startswith("#   sfsdp simulate ")), None)
    assert at is not None, f"{config}: no line '#   sfsdp simulate ...' in its head says what it was tuned for"
    said = line.fullmatch(head[at + 1])
    assert said, f"{config}: expected '#   T s a step, N tokens/s per device, peak A of B GiB', got {head[at + 1]}"
    arguments = shlex.split(head[at])[2:]
    assert arguments[1:3] == ["--config", config], arguments
    out = json.loads(subprocess.run([sfsdp, *arguments, "--json"], check=True, capture_output=True, text=True).stdout)
    seconds = float(said[1]) / (1000 if said[2] == "ms" else 1)
    for name, wants, got in [("step", seconds, out["step_seconds"]), ("peak", float(said[4]), out["peak_bytes"] / 2**30),
                             ("tokens/s", float(said[3].replace(",", "")), out["tokens_per_second"])]:
        assert abs(wants - got) <= 0.02 * got, f"{config}: {name} {wants} in its head, {got} now"
    assert out["fits"], config
    print(f"{config}: {out['world']} ranks of {out['machine']}, {out['step_seconds']:.3f} s a step")
    # the plan of the same step is sound, and reads back
    wanted = arguments[1:]
    world = wanted[wanted.index("--world") + 1]
    subprocess.run([sfsdp, "plan", "--config", config, "--world", world], check=True, capture_output=True)
PY
