#!/usr/bin/env bash
# examples/launch: the batch script runs as it stands, with an srun that starts two tasks on this host, and goes on after it was
# queued again; the manifest is YAML, and its command runs with its variables in two processes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
repo=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; tail -20 "$dir/out"; exit 1; }
bash -n examples/launch/slurm.sbatch || fail "slurm.sbatch is no bash script"
mkdir "$dir/bin"
cat >"$dir/bin/sfsdp" <<SH
#!/usr/bin/env bash
echo "\$RANK \$LOCAL_RANK of \$LOCAL_WORLD_SIZE, \$WORLD_SIZE, \$TORCHELASTIC_RUN_ID \$TORCHELASTIC_RESTART_COUNT" >>"\$FAKE/ranks"
echo "\$\$" >>"\$FAKE/processes"
exec "$repo/build/release/sfsdp" "\$@"
SH
cat >"$dir/bin/scontrol" <<'SH'
#!/usr/bin/env bash
[[ $1 == requeue ]] && touch "$FAKE/requeued" && exit
echo 127.0.0.1 # show hostnames
SH
cat >"$dir/bin/srun" <<'SH'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 "$@" &
done
code=0
for job in $(jobs -p); do
  wait "$job"
  own=$?
  ((own > code)) && code=$own
done
exit $code
SH
chmod +x "$dir"/bin/*
sed -e 's/^seq_len = .*/seq_len = 16/; s/^steps = .*/steps = 3/; s/^local_batch_size = .*/local_batch_size = 1/' \
  configs/llama3_debug.toml >"$dir/job.toml"
printf '[checkpoint]\nlast_save_model_only = false\n' >>"$dir/job.toml"
export PATH=$dir/bin:$PATH FAKE=$dir
port=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
slurm=(SLURM_JOB_NAME=llama3 SLURM_JOB_NODELIST=one SLURM_JOB_ID=$port SLURM_CPUS_ON_NODE=2 SLURM_NTASKS_PER_NODE=2)
env "${slurm[@]}" CONFIG="$dir/job.toml" RUN_FOLDER="$dir/slurm" timeout 200 bash examples/launch/slurm.sbatch >"$dir/out" 2>&1 ||
  fail "slurm.sbatch: exit code $?"
(($(wc -l <"$dir/slurm/metrics.jsonl") == 3)) && [[ -d $dir/slurm/checkpoint/step-3 ]] || fail "slurm.sbatch has not trained 3 steps"
[[ $(sort "$dir/ranks") == "0 0 of 2, 2, $port 0"$'\n'"1 1 of 2, 2, $port 0" ]] || fail "slurm.sbatch: $(cat "$dir/ranks")"

# The next job goes back to step 3 once. USR1 ends it early: it is queued again, and then goes on from its own checkpoint.
slurm+=(SLURM_JOB_ID=$((port + 1)))
sed 's/^steps = .*/steps = 1000000/' "$dir/job.toml" >"$dir/back.toml"
echo 'load_step = 3' >>"$dir/back.toml"
rm "$dir/processes"
env "${slurm[@]}" CONFIG="$dir/back.toml" RUN_FOLDER="$dir/slurm" timeout 200 bash examples/launch/slurm.sbatch >"$dir/out" 2>&1 &
job=$!
while kill -0 "$job" 2>/dev/null && (($(wc -l <"$dir/slurm/metrics.jsonl") < 5)); do sleep 0.1; done
# shellcheck disable=SC2046
kill -USR1 $(cat "$dir/processes")
wait "$job" || fail "slurm.sbatch: exit code $? after USR1"
[[ -e $dir/requeued ]] || fail "slurm.sbatch has not queued itself again"
saved=$(wc -l <"$dir/slurm/metrics.jsonl")
[[ -d $dir/slurm/checkpoint/step-$saved ]] || fail "no checkpoint of step $saved"
sed -i "s/^steps = .*/steps = $((saved + 1))/" "$dir/back.toml"
env "${slurm[@]}" CONFIG="$dir/back.toml" RUN_FOLDER="$dir/slurm" timeout 200 bash examples/launch/slurm.sbatch >"$dir/out" 2>&1 ||
  fail "slurm.sbatch, queued again: exit code $?"
grep -q "step-$saved" "$dir/out" || fail "queued again, it does not go on from step $saved"
(($(grep -c "step: " "$dir/out") == 1)) || fail "queued again, it trains more than the step after $saved"

env "${slurm[@]}" CONFIG="$dir/none.toml" RUN_FOLDER="$dir/none" timeout 300 bash examples/launch/slurm.sbatch >"$dir/out" 2>&1
[[ $? == 2 ]] || fail "slurm.sbatch goes on after a mistake that no restart mends"

python3 -c 'import yaml' 2>/dev/null || { echo "SKIP: no yaml package here, so kubernetes.yaml is not tested"; exit 77; }
python3 - "$dir" "$port" <<'PY' >"$dir/out" 2>&1 || fail "kubernetes.yaml"
import os, subprocess, sys, yaml
folder, port = sys.argv[1:]
service, job = yaml.safe_load_all(open("examples/launch/kubernetes.yaml"))
assert (service["kind"], job["kind"]) == ("Service", "Job")
container = job["spec"]["template"]["spec"]["containers"][0]
given = {entry["name"]: entry.get("value") for entry in container["env"]}
assert int(given["WORLD_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
assert given["MASTER_ADDR"] == f'{job["metadata"]["name"]}-0.{service["metadata"]["name"]}'
assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
ours = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(int(port) % 20000 + 40000), "OMP_NUM_THREADS": "1",
        "SFSDP_JOB_TOKEN": "ab" * 32, "GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "the job's"}
assert set(given) == set(ours) | {"RANK"}, given
places = {"/config": folder, "/run/llama3": f"{folder}/pods"}
mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
assert mounts == set(places), mounts
args = container["command"] + container["args"]
for theirs, here in places.items(): args = [arg.replace(f"={theirs}", f"={here}") for arg in args]
ranks = [subprocess.Popen(args, env=dict(os.environ, **ours, RANK=str(rank))) for rank in (0, 1)]
codes = [rank.wait(200) for rank in ranks]
assert codes == [0, 0], codes
assert len(open(f"{folder}/pods/metrics.jsonl").readlines()) == 3
assert '"launch": "the job\'s"' in open(f"{folder}/pods/checkpoint/step-3/manifest.json").read()
PY
exit 0
