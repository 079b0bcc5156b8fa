#!/usr/bin/env bash
# Strangers at every port that ranks listen at, while they meet and after: the run must take the same course, bit for bit, and
# no rank may wait for one of them.
# Ranks without the job token, or with another one, are refused by name.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; tail -20 "$dir/out"; exit 1; }
small=(--job.config_file configs/llama3_debug.toml --training.seq_len 16 --training.local_batch_size 1 --model.args.n_layers 1
  --training.dataset_max_bytes 100000 --training.steps 40 --comm.init_timeout_seconds 300)
now() { date +%s.%N; }
free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }

begin=$(now)
timeout 300 $sfsdp launch -n 3 -- train "${small[@]}" --job.dump_folder "$dir/alone" >"$dir/out" 2>&1 || fail "undisturbed run"
alone=$(python3 -c "print($(now) - $begin)")

cat >"$dir/strangers.py" <<'PY'
# Finds every port that the ranks below process argv[1] listen at, and is rude to it, until they have ended.
import os, random, socket, sys, time
random.seed(7)
zeros, ones = b"\0" * 100_000, b"\xff" * 100_000
rude = [zeros, ones, b"\0" * 8, b"sfsdp/1\n", b"sfsdp/1\n" + zeros[:56], b"sfsdp/1\n" + ones[:200], b"GET / HTTP/1.1\r\n\r\n",
        b"\x07", random.randbytes(5000)]

def children(pid):
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{task}/children").read().split():
            out += [int(child)] + children(int(child))
    return out

def inodes(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try: found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError: pass
    return found

def listening(pids):
    sockets = set().union(*[inodes(p) for p in pids]) if pids else set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).read().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                host, port = words[1].split(":")
                yield host, int(port, 16)

# The right greeting, but for the proof: a byte at each turn of the loop. It ends each time in front of the token.
greeting = b"sfsdp/1\n" + b"\1\0\0\0" + b"\0" * 52
slow, attacked, open_ones, hosts = {}, {}, {}, set()
while True:
    try: ports = list(listening(children(int(sys.argv[1]))))
    except (FileNotFoundError, ProcessLookupError, PermissionError): break
    for host, port in ports:
        hosts.add(host)
        held = open_ones.setdefault(port, [])
        try:
            for _ in range(50 - len(held)):  # silent
                held.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            for text in rude:
                s = socket.create_connection(("127.0.0.1", port), timeout=2)
                s.setblocking(False)
                try: s.send(text)
                except OSError: pass
                held.append(s)
            at, s = slow.get(port, (0, None))
            if at == 0: s = socket.create_connection(("127.0.0.1", port), timeout=2)
            try:
                s.send(greeting[at : at + 1])
                slow[port] = ((at + 1) % len(greeting), s)
            except OSError: slow.pop(port, None)  # shown out
            attacked[port] = attacked.get(port, 0) + 1
        except OSError: pass  # it listens no more
        for s in held[60:]: s.close()
        del held[60:]
    time.sleep(0.005)
print("ports", len(attacked), "attacks", sum(attacked.values()), "hosts", *hosts)
PY
begin=$(now)
timeout 300 $sfsdp launch -n 3 -- train "${small[@]}" --job.dump_folder "$dir/attacked" >"$dir/out" 2>&1 &
launcher=$!
python3 "$dir/strangers.py" $launcher >"$dir/attacks" || fail "the strangers failed"
wait $launcher || fail "run among strangers: exit code $?"
among=$(python3 -c "print($(now) - $begin)")
# They share the cores with the ranks, so the bound is wide. Without any, a rank that waits for one stranger takes 5 s more.
python3 -c "import sys; sys.exit($among > 5 * $alone + 10)" || fail "$among s among strangers, $alone s alone"
read -r _ ports _ attacks _ hosts <"$dir/attacks"
[[ $ports -ge 1 && $attacks -ge 20 ]] || fail "too few attacks: $(cat "$dir/attacks")"
[[ $hosts == 0100007F ]] || fail "listens elsewhere than on loopback: $hosts"
python3 - "$dir/alone/metrics.jsonl" "$dir/attacked/metrics.jsonl" <<'PY' || fail "losses differ"
import json, sys
rows = [list(map(json.loads, open(name))) for name in sys.argv[1:]]
one, two = ([(row["step"], row["loss"], row["grad_norm"]) for row in run] for run in rows)
assert len(one) == 40 and one == two, (one[-1], two[-1])
alone, among = (max(row["comm_exposed_s"] for row in run) for run in rows)  # the longest wait of a step for other ranks
assert among < 20 * alone + 2, (alone, among)
PY

# A rank with another token, and one without: both are refused by name, and the run waits for the right one.
port=$(free_port)
token=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
rank() { MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=2 timeout 300 $sfsdp train "${small[@]}" --training.steps 2 --job.dump_folder "$dir/token"; }
RANK=0 SFSDP_JOB_TOKEN=$token rank >"$dir/out" 2>&1 &
first=$!
for wrong in "" "$(python3 -c 'import secrets; print(secrets.token_hex(32))')"; do
  RANK=1 SFSDP_JOB_TOKEN=$wrong
  [[ -n $wrong ]] && export SFSDP_JOB_TOKEN || unset SFSDP_JOB_TOKEN
  RANK=1 rank >"$dir/refused" 2>&1
  [[ $? == 2 ]] || fail "a rank without the token is not refused: $(cat "$dir/refused")"
  grep -q "rank 1 of 2 is refused by the store of rank 0" "$dir/refused" || fail "refused without a name: $(cat "$dir/refused")"
  [[ -n $wrong ]] && grep -q "$wrong" "$dir/refused" && fail "the token is printed"
done
RANK=1 SFSDP_JOB_TOKEN=$token rank >"$dir/second" 2>&1 || fail "the rank with the token: $(cat "$dir/second")"
wait $first || fail "rank 0 among refused ranks"
grep -q "$token" "$dir/out" "$dir/second" && fail "the token is printed"

# Where other hosts could connect, nobody starts without a token. A network of this test's own has such an address; else one
# that this host has.
in_network=(unshare -n bash -c 'ip link set lo up && ip addr add 198.51.100.7/32 dev lo && exec "$@"' in_network)
address=198.51.100.7
if ! "${in_network[@]}" true 2>/dev/null; then
  in_network=()
  address=$(python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 9)); print(s.getsockname()[0])' 2>/dev/null)
  if [[ -z $address || $address == 127.* ]]; then
    echo "SKIP: no address but loopback and no right to make one, so the refusal to listen without a token is not tested"
    exit 77
  fi
fi
unset SFSDP_JOB_TOKEN
RANK=0 MASTER_ADDR=$address MASTER_PORT=$port WORLD_SIZE=2 \
  timeout 300 "${in_network[@]}" $sfsdp train "${small[@]}" >"$dir/out" 2>&1
[[ $? == 2 ]] && grep -q "listens at $address:.* without a job token" "$dir/out" || fail "listens to other hosts without a token"
exit 0
