#!/usr/bin/env bash
# Sizes and words of docs/style.md, over the text alone: scripts/check_words.sh [rule]...
#   files      no file of code has more than 600 lines
#   functions  no function has more than 80 lines
#   axes       no "dp_shard" outside parallel/, train/ and tests: passes and plans read axes from types
#   behind     time is before and after
#   of         no comment or sentence begins with "Of": it says whose before what
#   keys       texts below train/ name options as C++ does: with_keys in train/config/config_resolve.cc turns them into keys
#   cells      no cell of a table in the docs has more than 120 characters, no paragraph more than 6 lines
# Without a rule: all. A function begins at a line that ends in { and ends at the } under its first letter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
code=(sfsdp tests examples benchmarks)
sources() { find "${code[@]}" \( -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.def' \) | sort; }

check_files() {
  sources | xargs wc -l | awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines, expected at most 600; split it"; bad = 1 } END { exit bad }'
}

check_functions() {
  sources | xargs awk '
    FNR == 1 { begin = wrapped = 0 }
    !begin && /^ ? ?[A-Za-z~\[]/ && !/^ *(namespace|class|struct|enum|union|extern|public:|private:)/ {
      match($0, /^ */); indent = RLENGTH; head = $0
      if (/\{$/) begin = FNR
      wrapped = !/[;{}]$/ ? FNR : 0 # the head goes on in lines that stand further in
      next
    }
    !begin && wrapped && /^ / { if (/\{$/) begin = wrapped; if (/[;{}]$/) wrapped = 0; next }
    begin && /^ *\}/ {
      match($0, /^ */)
      if (RLENGTH == indent) {
        if (FNR - begin + 1 > 80) { print FILENAME ":" begin ": " FNR - begin + 1 " lines, expected at most 80:" head; bad = 1 }
        begin = 0
      }
    }
    END { exit bad }'
}

check_axes() {
  local found
  found=$(sources | grep -Ev '^sfsdp/(parallel|train|testing)/|_test\.cc$|^tests/|^examples/|^benchmarks/' |
    xargs grep -n '"dp_shard"' | grep -Ev '//.*"dp_shard"' || true)
  [[ -z $found ]] || { echo "$found"; return 1; }
}

check_behind() {
  local found
  found=$(git ls-files -- '*.h' '*.cc' '*.cpp' '*.def' '*.md' '*.sh' '*.py' '*.cmake' '*.txt' '*.html' '*.toml' |
    grep -v '^scripts/check_words.sh$' | xargs grep -nwi 'behind' | grep -v 'check_words.sh' || true)
  [[ -z $found ]] || { echo "$found"; return 1; }
}

check_of() {
  local found
  found=$(git ls-files -- '*.h' '*.cc' '*.cpp' '*.def' '*.md' '*.sh' '*.py' '*.cmake' '*.txt' '*.html' '*.toml' |
    xargs grep -nE '(^|[^A-Za-z"])Of( +[A-Za-z0-9`]|$)' | grep -v '^docs/style.md.*| The plan shows' || true)
  [[ -z $found ]] || { echo "$found"; echo 'expected subject, verb, object; no sentence begins with "Of"'; return 1; }
}

check_keys() {
  local literals keys found name status=0
  literals=$(find sfsdp/{mesh,ir,cost,plan,passes,sim,tune,parallel,optim,capture,comm,exec,step,models} -name '*.cc' -o -name '*.h' |
    grep -v '_test\.cc$' | sort | xargs grep -noHE '"([^"\]|\\.)*"')
  keys=$(awk -F'[("]' '/^SFSDP_SECTION/ { section = $3 }
    /^SFSDP_KEY/ { split($2, part, /, */); print section "\\." part[3] }' sfsdp/train/config/config_fields.def | paste -sd'|')
  found=$(grep -E "\b($keys|model\.args|fsdp_[a-z_]+)\b| --[a-z]" <<<"$literals" | grep -v 'sfsdp launch --' || true)
  [[ -z $found ]] || { echo "$found"; echo "expected the C++ option"; status=1; }
  # what no config can set wrong
  local rows="CompileOptions:: DataParallelOptions::mode MixedPrecisionPolicy:: Pt2Options:: Reduction::None Step::"
  rows+=" $(sed -nE 's/^ *\{"([A-Za-z0-9]+::\w*)".*/\1/p' sfsdp/train/config/config_resolve.cc | paste -sd' ')"
  for name in $(grep -oE '\b[A-Z][A-Za-z0-9]*::\w*' <<<"$literals" | sort -u); do
    found=
    for row in $rows; do [[ $name == "$row"* ]] && found=yes; done
    [[ -n $found ]] || { echo "$name has no row in with_keys, train/config/config_resolve.cc"; status=1; }
  done
  return $status
}

check_cells() {
  git ls-files -- '*.md' | LC_ALL=C xargs awk '
    function end_paragraph() {
      if (lines > 6) { print file ":" begin ": a paragraph of " lines " lines, expected at most 6"; bad = 1 }
      lines = 0
    }
    FNR == 1 { end_paragraph(); file = FILENAME; fenced = 0 }
    /^```/ { fenced = !fenced; end_paragraph(); next }
    fenced { next }
    /^\|/ {
      n = split($0, cells, /\|/)
      for (i = 1; i <= n; ++i) {
        gsub(/^ +| +$/, "", cells[i])
        if (length(cells[i]) > 120) { print FILENAME ":" FNR ": a cell of " length(cells[i]) " characters, expected at most 120"; bad = 1 }
      }
    }
    /^(\||#|    |$)/ { end_paragraph(); next }
    /^ *([-*]|[0-9]+\.) / { end_paragraph() }
    { if (!lines++) begin = FNR }
    END { end_paragraph(); exit bad }'
}

status=0
rules=("$@")
((${#rules[@]})) || rules=(files functions axes behind of keys cells)
for rule in "${rules[@]}"; do
  case $rule in
  files | functions | axes | behind | of | keys | cells) "check_$rule" || status=1 ;;
  *) echo "no rule $rule; expected files, functions, axes, behind, of, keys or cells" && exit 2 ;;
  esac
done
exit $status
