#!/usr/bin/env bash
# Two processes train the debug model with FSDP; one process with the same global batch reports the same losses. What passes
# do can be watched, and passes can be left out, without another result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
common=(train --job.config_file configs/llama3_debug.toml --training.steps 4 --training.seq_len 32 --model.args.n_layers 2
  --training.dataset_max_bytes 200000 --exec.products by_processor) # as inspect names them, which measures nothing
$sfsdp launch -n 2 --log-rank 0 -- "${common[@]}" --training.local_batch_size 2 --job.dump_folder "$dir/two" \
  --debug.print_ir_after_all "$dir/graphs" --debug.print_ir_diff "$dir/diffs" --debug.disable_pass prefetch_gathers,sink_waits
$sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/one"
# Nor do collectives on threads of their own, which wait while others compute, whichever way ranks exchange data.
for lanes in inline threads "threads --comm.shared_memory false"; do
  $sfsdp launch -n 2 --log-rank 0 -- "${common[@]}" --training.local_batch_size 2 --job.dump_folder "$dir/lanes ${lanes// /_}" --exec.lanes $lanes
done
# What blocks keep changes no bit: attention alone; all products but those of wo and of its shape.
op=(--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op)
$sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/saved" "${op[@]}" --activation_checkpoint.save sdpa,feed_forward.w2
$sfsdp "${common[@]}" --training.local_batch_size 4 --job.dump_folder "$dir/shapes" "${op[@]}" --activation_checkpoint.products_again 0 \
  --activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns attention.wo
python3 - "$dir" <<'PY'
import json, sys
def rows(name):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
one, two = rows("one"), rows("two")
assert len(one) == len(two) == 4, (len(one), len(two))
for name in ("saved", "shapes"):
    for a, b in zip(one, rows(name), strict=True):
        assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (name, a, b)
for name in ("threads", "threads_--comm.shared_memory_false"):
    for a, b in zip(rows("lanes inline"), rows("lanes " + name), strict=True):
        assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (name, a, b)
for a, b in zip(one, two):
    assert a["lr"] == b["lr"] and a["tokens"] == b["tokens"], (a, b)
    assert abs(a["loss"] - b["loss"]) <= 1e-6 * a["loss"], (a, b)
    assert abs(a["grad_norm"] - b["grad_norm"]) <= 5e-6 * a["grad_norm"], (a, b)
PY

# The files are those of the pipeline without the two passes, and the last graph is the one that ran.
inspect() { $sfsdp inspect --config configs/llama3_debug.toml --world 2 --training.seq_len 32 --model.args.n_layers 2 \
  --training.local_batch_size 2 --exec.products by_processor --debug.disable_pass prefetch_gathers,sink_waits "$@"; }
inspect --passes | awk 'NR > 1 { printf "%02d-%s\n", NR - 1, $1 }' >"$dir/passes"
(cd "$dir/diffs" && ls) | sed 's/[.]diff$//' | diff "$dir/passes" -
inspect --layout | grep -Eq "^storage_layout version=1 hash=[0-9a-f]{16} entries=[0-9]+$" || { inspect --layout; exit 1; }
inspect --json --machine machines/dgx_h100.toml | python3 -c '
import json, sys
r = json.load(sys.stdin)
assert r["mesh"] == "[dp_shard=2]" and r["collectives"]["all_gather"]["count"] > 0, r
by_name = {p["name"]: p for p in r["passes"]}
assert by_name["bucket"]["collectives_after"] < by_name["bucket"]["collectives_before"], by_name
assert 0 < by_name["bucket"]["step_seconds_after"] < by_name["bucket"]["step_seconds_before"], by_name
assert by_name["remat"]["peak_bytes_after"] == by_name["remat"]["peak_bytes_before"], by_name
'
repeated() { inspect "${op[@]}" "$@" --json | python3 -c 'import json, sys
print(next(p["ops_repeated"] for p in json.load(sys.stdin)["passes"] if p["name"] == "remat"))'; }
kept=$(repeated --activation_checkpoint.products_again 0) forced=$(repeated --activation_checkpoint.products_again 0 \
  --activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns attention.wo) saved=$(repeated --activation_checkpoint.save sdpa)
((kept < forced && forced < saved)) || { echo "ops computed again: $kept, $forced, $saved"; exit 1; }
inspect --graph | diff - "$dir/graphs/$(tail -1 "$dir/passes").txt"
grep -q '^+.*all_gather.start' "$dir/diffs/$(grep split_collectives "$dir/passes").diff"
if inspect --debug.disable_pass wrap >"$dir/wrong" 2>&1; then echo "a needed pass can be disabled"; exit 1; fi
grep -q 'expected bucket disabled too' "$dir/wrong"
