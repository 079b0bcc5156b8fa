#!/usr/bin/env bash
# The page of `sfsdp simulate --html`, opened in headless Chromium: it draws without an error, asks nothing of the network,
# shows a lane per communicator and a row per bucket; a page of a step with over 100,000 events stays below 5 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
sfsdp=build/release/sfsdp
hsdp=(--config configs/llama3_8b.toml --mesh dp_replicate=2,dp_shard=8)
"$sfsdp" simulate "${hsdp[@]}" --machine machines/dgx_h100.toml --html "$dir/page.html" --trace "$dir/trace.json" >/dev/null
"$sfsdp" inspect "${hsdp[@]}" --graph >"$dir/graph.ir"
grep -Eq '(src|href)=|@import|url\(|fetch\(|https?:' "$dir/page.html" && fail "the page asks for something outside itself"

# 405B in twelve micro-batches, a kernel per op
"$sfsdp" simulate --config configs/llama3_405b.toml --machine machines/dgx_h100.toml --world 512 --simulate.execution eager \
  --training.local_batch_size 1 --training.global_batch_size 6144 --activation_checkpoint.mode full \
  --html "$dir/big.html" >/dev/null
events=$(sed -n 's/.*"events":\([0-9]*\).*/\1/p' "$dir/big.html")
((events > 100000)) || fail "405B has $events events, expected more than 100000"
size=$(stat -c %s "$dir/big.html")
((size < 5000000)) || fail "the page of 405B has $size bytes, expected less than 5 MB"

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[[ -n $chromium ]] || { echo "SKIP: no chromium here, so the page was made but not opened; apt-get install chromium"; exit 77; }
# Prints the page as it is once its script has run; what the console got goes to $dir/console.
open_page() {
  timeout 300 "$chromium" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$dir/profile" \
    --window-size=1400,1200 --enable-logging=stderr --v=0 --dump-dom "file://$1" 2>"$dir/log" || fail "$chromium: $(tail "$dir/log")"
  grep 'CONSOLE' "$dir/log" >"$dir/console" || true
}
is_whole() { [[ ! -s $dir/console ]] && grep -q '<body[^>]*data-ready="true"' "$1" && ! grep -q '<body[^>]*data-error' "$1"; }

"$sfsdp" plan "${hsdp[@]}" --machine dgx_h100 --html "$dir/plan.html" >/dev/null
grep -Eq '(src|href)=|@import|url\(|fetch\(|https?:' "$dir/plan.html" && fail "the plan's page asks for something outside itself"
for page in page big plan; do
  open_page "$dir/$page.html" >"$dir/$page.dom"
  is_whole "$dir/$page.dom" || fail "$page: $(cat "$dir/console"; grep -o '<body[^>]*>' "$dir/$page.dom")"
done
python3 - "$dir" <<'PY'
import json, re, sys
folder = sys.argv[1]
dom, big = (open(f"{folder}/{name}.dom").read() for name in ("page", "big"))
trace = json.load(open(f"{folder}/trace.json"))["traceEvents"]
plan = open(f"{folder}/plan.dom").read()
lanes = sum(e["ph"] == "M" for e in trace)
collective = re.compile(r" = (all_gather|reduce_scatter|all_reduce|broadcast)(\.start)? ")
ops = [m[1] for m in map(collective.search, open(f"{folder}/graph.ir")) if m]
assert lanes == 4 and dom.count('class="lane"') == lanes, (lanes, dom.count('class="lane"'))
assert len(ops) > 100 and dom.count('<tr class="bucket">') == len(ops), (len(ops), dom.count('<tr class="bucket">'))
assert dom.count('<tr class="kind">') == len(set(ops)) == 3
assert dom.count(">module with a number<") == 32 * 4  # a block's gather, gather again, reduction, reduction over replicas
drawn = lambda text: int(re.search(r'data-drawn="(\d+)"', text)[1])
assert drawn(dom) > 500 and drawn(big) > 2000, (drawn(dom), drawn(big))
assert "out of memory" not in re.search(r'<span id="fits"[^>]*>([^<]*)', dom)[1]
assert "<h1 id=\"title\">llama3 8B on 16 × H100 SXM 80 GB</h1>" in dom
assert plan.count('class="name lane"') == lanes and plan.count('class="name region"') == 3
assert drawn(plan) > 1900, drawn(plan)
PY

# A page that fails is seen to fail.
sed 's/^drawMemory();$/drawMemoryNot();/' "$dir/page.html" >"$dir/broken.html"
open_page "$dir/broken.html" >"$dir/broken.dom"
is_whole "$dir/broken.dom" && fail "an error in the page's script goes unnoticed"
grep -q 'drawMemoryNot' "$dir/console" || fail "the console's error is not read: $(cat "$dir/log")"
