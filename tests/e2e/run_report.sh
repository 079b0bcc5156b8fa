#!/usr/bin/env bash
# The page of `sfsdp report`, opened in headless Chromium: of one run, of two, of one that went wrong, of a very long one. It
# draws without an error and asks nothing of the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
sfsdp=build/release/sfsdp
train() { # $1: folder, then flags
  local folder=$1
  shift
  "$sfsdp" train --config configs/llama3_debug.toml --training.steps 12 --training.seq_len 32 --model.args.n_layers 1 \
    --job.dump_folder "$dir/$folder" "$@" >/dev/null || fail "train failed"
}
train a
train b --optimizer.lr 0.01 --job.description '</script><script>document.body.dataset.error="hostile"</script>'
"$sfsdp" report "$dir/a" >"$dir/out"
grep -q "^Page: $dir/a/report.html$" "$dir/out" || fail "no page beside the run: $(cat "$dir/out")"
"$sfsdp" report "$dir/a" "$dir/b" --out "$dir/two.html" >/dev/null
python3 - "$dir" <<'PY'
import json, os, sys
folder = sys.argv[1]
os.makedirs(f"{folder}/bad"), os.makedirs(f"{folder}/long"), os.makedirs(f"{folder}/empty")
open(f"{folder}/empty/metrics.jsonl", "w").close()
with open(f"{folder}/bad/metrics.jsonl", "w") as file:
    for k in range(1, 40):
        file.write(json.dumps({"step": k, "loss": 5 / k if k < 30 else "nan", "grad_norm": 0 if k == 7 else 1 / k}) + "\n")
    file.write('not a line\n{"step": 40, "lo')
with open(f"{folder}/long/metrics.jsonl", "w") as file:
    for k in range(1, 200001):
        loss = 2 + 6 / k**0.3 + (20 if k == 123456 else 0)
        file.write('{"step": %d, "loss": %.17g, "grad_norm": %.17g, "tokens": %d, "step_time_s": 0.25, "tps": 4096.5}\n'
                   % (k, loss, 1 + k % 97 / 97, k * 1024))
PY
"$sfsdp" report "$dir/bad" "$dir/empty" --out "$dir/bad.html" >"$dir/out"
grep -q '2 lines could not be read: metrics.jsonl:40' "$dir/out" || fail "what cannot be read is not said: $(cat "$dir/out")"
"$sfsdp" report "$dir/long" --out "$dir/long.html" >/dev/null
size=$(stat -c %s "$dir/long.html")
((size < 1000000)) || fail "the page of 200,000 steps has $size bytes, expected less than 1 MB"
if "$sfsdp" report "$dir/none" 2>"$dir/err"; then fail "a folder without a run is taken"; fi
grep -q 'none: is no file' "$dir/err" || fail "$(cat "$dir/err")"
cp "$dir/a/report.html" "$dir/one.html"
grep -Eq '(src|href)=|@import|url\(|fetch\(|https?:' "$dir/two.html" && fail "the page asks for something outside itself"

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[[ -n $chromium ]] || { echo "SKIP: no chromium here, so pages were made but not opened; apt-get install chromium"; exit 77; }
# Prints the page as it is once its script has run; what the console got goes to $dir/console.
open_page() {
  timeout 300 "$chromium" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$dir/profile" \
    --window-size=1400,1200 --enable-logging=stderr --v=0 --dump-dom "file://$1" 2>"$dir/log" || fail "$chromium: $(tail "$dir/log")"
  grep 'CONSOLE' "$dir/log" >"$dir/console" || true
}
is_whole() { [[ ! -s $dir/console ]] && grep -q '<body[^>]*data-ready="true"' "$1" && ! grep -q '<body[^>]*data-error' "$1"; }
for page in one two bad long; do
  open_page "$dir/$page.html" >"$dir/$page.dom"
  is_whole "$dir/$page.dom" || fail "$page: $(cat "$dir/console"; grep -o '<body[^>]*>' "$dir/$page.dom")"
done
python3 - "$dir" <<'PY'
import re, sys
one, two, bad, long = (open(f"{sys.argv[1]}/{name}.dom").read() for name in ("one", "two", "bad", "long"))
points = lambda dom: re.search(r'data-points="([^"]*)"', dom)[1]
assert points(one) == "12" and points(two) == "12,12" and points(bad) == "39,0", (points(one), points(two), points(bad))
assert 1000 < int(points(long)) <= 1500, points(long)
differing = re.findall(r'<tr class="differs"><td class="key">([^<]*)', two)
assert {"optimizer.lr", "job.description", "job.dump_folder"} <= set(differing) and "training.steps" not in differing, differing
assert "&lt;/script&gt;&lt;script&gt;document.body" in two
for text in ("The loss of 10 steps is not finite.", "2 lines could not be read", "It has no step yet."):
    assert text in bad, text
PY

# A page that fails is seen to fail.
sed 's/^drawAll();$/drawAllNot();/' "$dir/one.html" >"$dir/broken.html"
open_page "$dir/broken.html" >"$dir/broken.dom"
is_whole "$dir/broken.dom" && fail "an error in the page's script goes unnoticed"
grep -q 'drawAllNot' "$dir/console" || fail "the console's error is not read: $(cat "$dir/log")"
