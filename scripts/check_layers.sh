#!/usr/bin/env bash
# Checks, over #include lines, the arrows of docs/architecture.md section 2, where LibTorch may enter, itself or through another
# header (cmake/torch_sources.cmake), that nobody includes all of LibTorch, that sfsdp/testing stays in tests, the size of
# headers, and that files of a folder have no local function of one name. check_words.sh has the other sizes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
torch_units=$(sed -n '/^set(SFSDP_TORCH_FREE/,$d; s/#.*//; s/^ *\(sfsdp\/[^ )]*\).*/\1/p' cmake/torch_sources.cmake | paste -sd' ')

status=0
find sfsdp tests \( -name '*.h' -o -name '*.cc' -o -name '*.def' \) | sort | xargs -r awk -v torch_units="$torch_units" '
function report(where, expected) { print where ": " expected; bad = 1 }

function check_size() {
  if (file ~ /\.h$/ && lines > 250) report(file, lines " lines, expected at most 250; split it")
}

function may_include_torch(f,   i) {
  if (f !~ /^sfsdp\//) return f ~ /^tests\/torch\//
  sub(/_test\.cc$|\.h$|\.def$/, ".cc", f)
  for (i in torch) if (f ~ torch[i]) return 1
  return 0
}

# The headers from f to one of LibTorch: " -> x.h -> <ATen/ATen.h>", or nothing. A header that is at fault itself ends the way.
function way_to_torch(f,   i, n, to, way) {
  if (f in ways) return ways[f]
  ways[f] = "" # a circle leads nowhere
  if (f in torch_header) return ways[f] = " -> <" torch_header[f] ">"
  n = split(includes[f], to, " ")
  for (i = 1; i <= n; ++i)
    if (!(to[i] in torch_free && to[i] in torch_header) && (way = way_to_torch(to[i])) != "") return ways[f] = " -> " to[i] way
  return ""
}

BEGIN {
  # folder -> folders it may include, besides itself
  core = "base"; allowed["base"] = ""
  n = split("mesh ir kernels cost plan passes sim tune parallel optim compile", chain, " ")
  for (i = 1; i <= n; ++i) { allowed[chain[i]] = core; core = core " " chain[i] }
  allowed["capture"] = core
  allowed["comm"] = core
  allowed["device"] = core
  allowed["exec"] = core " capture comm device"
  allowed["step"] = core " capture comm device exec exported"
  allowed["exported"] = "base mesh ir" # of ir/ dtypes, and the graphs that an archive is made of
  allowed["models"] = "base ir exported" # single-device modules know no mesh, no graph
  allowed["train"] = core " capture comm device exec step exported models"
  allowed["tools"] = core " capture comm device exec step exported models train"
  allowed["testing"] = core " capture comm device exec step exported models train tools"
  n = split(torch_units, torch, " ")
  for (i = 1; i <= n; ++i) {
    gsub(/\./, "\\.", torch[i]); gsub(/\*/, "[^/]*", torch[i])
    torch[i] = "^" torch[i] (torch[i] ~ /\.cc$/ ? "$" : "/")
  }
}

FNR == 1 {
  if (file != "") check_size()
  file = FILENAME
  split(file, part, "/")
  folder = part[2]
  is_test = file ~ /^tests\// || file ~ /_test\.cc$/ || folder == "testing"
  if (!may_include_torch(file)) torch_free[file] = 1
  users = file == "sfsdp/sfsdp.h" || file == "sfsdp/testing.h" # what users include; they hold includes alone
  if (file ~ /^sfsdp\// && !users && !(folder in allowed)) report(file, "folder is in no layer; add it to scripts/check_layers.sh")
}
{ lines = FNR }

/^[ \t]*#[ \t]*include/ {
  where = file ":" FNR
  target = $0
  sub(/^[^<"]*[<"]/, "", target); sub(/[>"].*/, "", target)
  if (target ~ /^(torch|ATen|c10|caffe2)\//) {
    torch_header[file] = target
    if (target ~ /^torch\/(torch|all|nn|optim|data|extension|script)\.h$/)
      report(where, "includes <" target ">, which costs seconds in every compilation; include what is used, as <torch/nn/modules/linear.h>")
  }
  if (target ~ /^(toml\+\+)\// && file ~ /\.h$/) report(where, "includes <" target ">; expected in a .cc only")
  if (target ~ /^sfsdp\//) {
    includes[file] = includes[file] " " target
    split(target, to, "/")
    if (folder == "passes" && !is_test && target ~ /^sfsdp\/cost\// && target !~ /^sfsdp\/cost\/(op_shape|kernels)\.h$/)
      report(where, "includes " target "; a pass reads no machine file: what depends on one is chosen in tune/")
    if ((to[2] == "sfsdp.h" || to[2] == "testing.h") && !is_test) report(where, "includes " target "; that is for users")
    else if (to[2] == "testing" && !is_test) report(where, "includes " target "; expected in tests only")
    else if (!is_test && !users && to[2] != folder && index(" " allowed[folder] " ", " " to[2] " ") == 0)
      report(where, folder "/ includes " target "; it may include: " (allowed[folder] == "" ? "nothing" : allowed[folder]))
  }
}

END {
  if (file != "") check_size()
  for (f in torch_free)
    if ((f ~ /\.cc$/ || f in torch_header) && (way = way_to_torch(f)) != "")
      report(f, "is torch-free (cmake/torch_sources.cmake), but includes LibTorch:" way)
  exit bad
}' || status=1

# Files of a folder are compiled as one: a function in an anonymous namespace could be taken for that of another file, without a word
# where their arguments differ. Other names that meet are errors of the compiler.
find sfsdp -name '*.cc' ! -name '*_test.cc' ! -path 'sfsdp/kernels/*' ! -path 'sfsdp/testing/*' | LC_ALL=C sort | xargs awk '
  FNR == 1 { folder = FILENAME; sub(/\/[^\/]*$/, "", folder); if (FILENAME ~ /[a-z]_torch\.cc$/ && FILENAME !~ /\/no_/) folder = folder "_torch"; inside = 0 }
  /^namespace \{/ { inside = 1 }
  /^\}  \/\/ namespace$/ { inside = 0 }
  inside && /^[a-zA-Z][^(=]* [&*]*[a-zA-Z_0-9]+\(/ && !/^(using|class|struct|template|constexpr [^(]*=)/ {
    name = $0
    sub(/\(.*/, "", name); sub(/.*[^A-Za-z0-9_]/, "", name)
    key = folder " " name
    if (key in file && file[key] != FILENAME) {
      print FILENAME ":" FNR ": " name " is also a function of the anonymous namespace of " file[key] "; expected another name: files of a folder are compiled as one"
      bad = 1
    }
    file[key] = FILENAME
  }
  END { exit bad }' || status=1
exit $status
