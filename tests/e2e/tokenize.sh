#!/usr/bin/env bash
# sfsdp tokenizer and tokenize as they are run: ids of Hugging Face's library over pipes, and token files that are the same
# bytes after kills at 19 moments as without any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
tokenizers=tests/fixtures/tokenizers
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

# Lines of expected.json's cases are {"text": ..., "ids": [...]}: encode must give back the ids of each.
for pipeline in gpt2 llama3 qwen2; do
  sed -n '/^"cases"/,/^\]/ { s/,$//; /^{/p }' "$tokenizers/$pipeline/expected.json" >"$dir/cases"
  (($(wc -l <"$dir/cases") > 100)) || fail "$pipeline: few cases"
  "$sfsdp" tokenizer encode "$tokenizers/$pipeline/tokenizer.json" <"$dir/cases" >"$dir/ids"
  sed 's/.*"ids": \(.*\)}$/{"ids": \1}/' "$dir/cases" | cmp - "$dir/ids" || fail "$pipeline: other ids"
  "$sfsdp" tokenizer decode "$tokenizers/$pipeline" --special <"$dir/ids" >"$dir/texts"
  [[ $(wc -l <"$dir/texts") == $(wc -l <"$dir/cases") ]] || fail "$pipeline: decode lost lines"
done
status=0
printf '{"text": "a"}\n{"text": 1}\n' | "$sfsdp" tokenizer encode "$tokenizers/gpt2" >"$dir/out" 2>"$dir/err" || status=$?
[[ $status == 2 && $(wc -l <"$dir/out") == 1 ]] || fail "a bad line: status $status"
grep -q '^error: standard input:2: ' "$dir/err" || fail "a bad line: $(cat "$dir/err")"

for ((i = 0; i < 120000; ++i)); do printf '{"text": "Line %d of a file, %d in all.", "n": %d}\n' "$i" $((i * i)) "$i"; done >"$dir/a.jsonl"
gzip -k "$dir/a.jsonl"
find docs -name '*.md' -exec cat {} + >"$dir/b.txt"
tokenize=("$sfsdp" tokenize "$dir/a.jsonl" "$dir/b.txt" "$dir/a.jsonl.gz" --tokenizer "$tokenizers/llama3" --split-on blank-lines
  --shard-tokens 200000)
now() { date +%s%3N; }
whole=1000000 # ms that a run takes here: the kills come at parts of it, on a slow machine as on a fast one
for run in whole again; do
  start=$(now)
  "${tokenize[@]}" --out "$dir/$run" >"$dir/out"
  took=$(($(now) - start))
  whole=$((took < whole ? took : whole))
done
grep -q 'tokens in .* documents;' "$dir/out" || fail "no summary: $(cat "$dir/out")"
diff -r "$dir/whole" "$dir/again" || fail "two runs write different files"
kills=0
for ((i = 1; i < 20; ++i)); do # after 7/20 of a run, 14/20, 1/20, ...
  ms=$(printf '%04d' $((whole * (i * 7 % 20) / 20 + 1)))
  "${tokenize[@]}" --out "$dir/killed" >"$dir/out" 2>&1 &
  run=$!
  sleep "${ms::-3}.${ms: -3}"
  kill -KILL $run 2>/dev/null || true
  wait $run 2>/dev/null || kills=$((kills + 1)) # until it has gone, with its lock: timeout --signal=KILL ends before that
done
"${tokenize[@]}" --out "$dir/killed" >"$dir/out"
echo "killed $kills times of 19; a run takes $whole ms"
((kills > 0)) || fail "was never killed in the middle"
diff -r "$dir/whole" "$dir/killed" || fail "files differ after kills"
"${tokenize[@]}" --out "$dir/killed" | grep -q 'complete before' || fail "ran again"
