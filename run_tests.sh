#!/usr/bin/env bash
# Sets up, builds, lints and tests all this machine can; last line: "N passed, N failed", a count of test cases, checks
# and scripts of tests/e2e, and ", N skipped" of those that could not run here. Before it: the seconds of each part, and
# the first errors of what failed.
#   ./run_tests.sh             everything; clang-tidy on what changed
#   ./run_tests.sh --lint      everything; clang-tidy on every file
#   ./run_tests.sh core        the checks and the torch-free tests; needs no LibTorch
#   ./run_tests.sh <word>      test cases, test files and e2e scripts whose name holds the word
#   ./run_tests.sh --sanitize  all tests under ASan and UBSan, the torch-free ones under TSan too
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
passed=0 failed=0 skipped=0 failures=() skips=() times=() errors=
threads=${OMP_NUM_THREADS:-1} # of a rank in a test: ranks share the cores
unset OMP_NUM_THREADS          # else nproc counts by it, and one file is compiled at a time

finish() {
  printf '%6s s  %s\n' "${times[@]}" $SECONDS "in all"
  ((${#skips[@]})) && printf 'SKIPPED: %s\n' "${skips[@]}"
  [[ $errors == *[![:space:]]* ]] && printf '%s\n' "$errors"
  ((${#failures[@]})) && printf 'FAILED: %s\n' "${failures[@]}"
  local summary="$passed passed, $failed failed"
  ((skipped)) && summary+=", $skipped skipped"
  echo "$summary"
  ((failed == 0 && passed > 0))
  exit
}

timed() { # a command, whose time is told at the end
  local start=$SECONDS status
  "$@"
  status=$?
  times+=($((SECONDS - start)) "$*")
  return $status
}

fail() { # $1: what; $2: how many
  failures+=("$1")
  failed=$((failed + ${2:-1}))
}

step() { # what must work before anything can be tested
  timed "$@" && return
  fail "$*"
  finish
}

check() { # one command, one test; exit status 77: it cannot run here
  local log status
  log=$(mktemp)
  echo "== $*"
  timed "$@" > >(tee "$log") 2>&1
  status=$?
  case $status in
  0) passed=$((passed + 1)) ;;
  77) skips+=("$*") && skipped=$((skipped + 1)) ;;
  *)
    fail "$*"
    sleep 1 # tee may still write
    errors+="$* ended with $status, its last lines:"$'\n'"$(tail -12 "$log")"$'\n'
    ;;
  esac
  rm -f "$log"
}

first_errors() { # of the log of a binary: the cases that failed, each with its first errors, 40 lines at most
  awk '/^===/ { left = 0 } /^TEST CASE:/ { name = $0; told = 0 }
       /: (FATAL )?ERROR: / { if (!told++) print name; if (told <= 3) { print "  " $0; left = 3 } else left = 0; next }
       left > 0 && NF { print "    " $0; --left }' "$1" | head -40
}

doctest() { # $1: seconds, $2: binary, then its arguments; counts test cases
  local seconds=$1 binary=$2 log status summary start=$SECONDS
  local -x OMP_NUM_THREADS=$threads
  shift 2
  echo "== $binary $*"
  log=$(mktemp)
  timeout --kill-after=10 "$seconds" "${launcher[@]}" "$binary" --no-colors=true "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  times+=($((SECONDS - start)) "$binary $*")
  summary=$(grep '^\[doctest\] test cases:' "$log" | tail -1)
  errors+=$(first_errors "$log")$'\n'
  rm -f "$log"
  local good=0 bad=0
  if [[ $summary =~ ([0-9]+)\ passed\ \|\ +([0-9]+)\ failed ]]; then good=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]}; fi
  passed=$((passed + good))
  if ((bad)); then
    fail "$binary: $bad test cases" "$bad"
  elif ((status == 124 || status == 137)); then
    fail "$binary: stopped after $seconds s"
  elif ((status)); then
    fail "$binary: exit status $status"
  fi
}
launcher=()

# The linter takes what the test binaries leave of the cores: they use a little more than one.
lint= lint_log=
start_clang_tidy() {
  lint_log=$(mktemp)
  nice -n 19 "$@" >"$lint_log" 2>&1 &
  lint=$!
  trap 'kill $lint 2>/dev/null' EXIT
}
clang_tidy() {
  local status
  wait "$lint"
  status=$?
  cat "$lint_log"
  rm -f "$lint_log"
  return $status
}

# A script may take eight times what it takes alone: 60 s, or what its line "# Takes N s alone." says. Beside three times its
# own load it takes four times as long, or a little more.
e2e() { # $1: word in the script's name, or nothing
  local script alone
  local -x OMP_NUM_THREADS=$threads XDG_CACHE_HOME=$PWD/build/test_cache # times of products: none of the user's
  for script in tests/e2e/*"$1"*.sh; do
    alone=$(sed -n 's/^# Takes \([0-9]*\) s alone\.$/\1/p' "$script")
    [[ -x $script ]] && check timeout --kill-after=10 $((8 * ${alone:-60})) "$script"
  done
}

tidy=()
if [[ ${1:-} == --lint ]]; then
  tidy=(--all)
  shift
fi
case ${1:-} in
--sanitize)
  step ./setup.sh --tests
  step scripts/build.sh asan
  export UBSAN_OPTIONS=print_stacktrace=1
  doctest 1800 build/asan/core_tests
  SFSDP_FUZZ_SEED=1000 SFSDP_FUZZ_INPUTS=10000 doctest 300 build/asan/core_tests -tc="fuzz:*" # about 30 s
  check build/asan/fuzz all --seconds 30 --at-least 10000 # a third of what two loaded cores do in the slowest target
  ASAN_OPTIONS=detect_leaks=0 doctest 1800 build/asan/torch_tests # LibTorch keeps registries until the end
  step scripts/build.sh tsan
  # TSan needs its address ranges free, which address randomization on new kernels breaks
  setarch "$(uname -m)" -R true 2>/dev/null && launcher=(setarch "$(uname -m)" -R)
  doctest 1800 build/tsan/core_tests
  ;;
core)
  step ./setup.sh --tests --no-torch
  step scripts/build.sh core
  check scripts/check_format.sh
  check scripts/check_layers.sh
  check scripts/check_words.sh
  check scripts/check_compile_time.sh core
  check scripts/check_tidy.sh core "${tidy[@]}"
  doctest 600 build/core/core_tests
  ;;
-*)
  echo "usage: ./run_tests.sh [--lint] [core | --sanitize | word]" >&2
  exit 2
  ;;
*)
  word=${1:-}
  step ./setup.sh --tests
  step scripts/build.sh release
  if [[ -n $word ]]; then
    for tests in core_tests torch_tests; do
      doctest 600 "build/release/$tests" "-tc=*$word*"
      doctest 600 "build/release/$tests" "-sf=*$word*" "-tce=*$word*" # the rest of the files of that name
    done
  else
    check scripts/check_format.sh
    check scripts/check_layers.sh
    check scripts/check_words.sh
    check scripts/check_compile_time.sh release
    start_clang_tidy scripts/check_tidy.sh release "${tidy[@]}"
    doctest 1800 build/release/core_tests
    doctest 2400 build/release/torch_tests
    check clang_tidy
  fi
  e2e "$word"
  ;;
esac
finish
