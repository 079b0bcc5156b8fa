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

# Commands run beside each other, each into a file that is printed when it has ended. By its process:
declare -A log_of=() start_of=() kind_of=() command_of=()
trap 'kill "${!log_of[@]}" 2>/dev/null' EXIT

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

fail() { # $1: what; $2: how many
  failures+=("$1")
  failed=$((failed + ${2:-1}))
}

step() { # what must work before anything can be tested
  local start=$SECONDS status
  "$@"
  status=$?
  times+=($((SECONDS - start)) "$*")
  ((status == 0)) && return
  fail "$*"
  finish
}

start() { # $1: check, one test, or cases, a binary that counts its own; then a command
  local kind=$1 log
  shift
  log=$(mktemp)
  echo "== begins: $*"
  "$@" >"$log" 2>&1 &
  log_of[$!]=$log start_of[$!]=$SECONDS kind_of[$!]=$kind command_of[$!]=$*
}

end_one() { # waits for any of what was started, prints and counts it
  local process status log kind command
  wait -n -p process "${!log_of[@]}"
  status=$? log=${log_of[$process]} kind=${kind_of[$process]} command=${command_of[$process]}
  times+=($((SECONDS - start_of[$process])) "$command")
  unset "log_of[$process]" "start_of[$process]" "kind_of[$process]" "command_of[$process]"
  echo "== $command"
  cat "$log"
  "end_$kind"
  rm -f "$log"
}
end_all() { while ((${#log_of[@]})); do end_one; done; }

end_check() { # exit status 77: it cannot run here
  case $status in
  0) passed=$((passed + 1)) ;;
  77) skips+=("$command") && skipped=$((skipped + 1)) ;;
  *)
    fail "$command"
    errors+="$command ended with $status, its last lines:"$'\n'"$(tail -12 "$log")"$'\n'
    ;;
  esac
}

end_cases() {
  local summary good=0 bad=0
  summary=$(grep '^\[doctest\] test cases:' "$log" | tail -1)
  errors+=$(first_errors "$log")$'\n'
  if [[ $summary =~ ([0-9]+)\ passed\ \|\ +([0-9]+)\ failed ]]; then good=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]}; fi
  passed=$((passed + good))
  if ((bad)); then
    fail "$command: $bad test cases" "$bad"
  elif ((status == 124 || status == 137)); then
    fail "$command: took too long"
  elif ((status)); then
    fail "$command: exit status $status"
  fi
}

first_errors() { # of the log of a binary: the cases that failed, each with its first errors, 40 lines at most
  awk '/^===/ { left = 0 } /^TEST CASE:/ { name = $0; told = 0 }
       /: (FATAL )?ERROR: / { if (!told++) print name; if (told <= 3) { print "  " $0; left = 3 } else left = 0; next }
       left > 0 && NF { print "    " $0; --left }' "$1" | head -40
}

check() { # one command, by itself
  start check "$@"
  end_all
}

launcher=()
start_cases() { # $1: seconds, $2: binary, then its arguments
  local seconds=$1 binary=$2
  shift 2
  OMP_NUM_THREADS=$threads start cases timeout --kill-after=10 "$seconds" "${launcher[@]}" "$binary" --no-colors=true "$@"
}
cases() {
  start_cases "$@"
  end_all
}

# Three run at a time, as much of their time is waiting. A script may take eight times what it takes alone: 60 s, or what its line
# "# Takes N s alone." says. Beside three times its own load it takes four times as long, or a little more.
beside=3
e2e() { # $1: word in the script's name, or nothing
  local script alone
  for script in tests/e2e/*"$1"*.sh; do
    [[ -x $script ]] || continue
    alone=$(sed -n 's/^# Takes \([0-9]*\) s alone\.$/\1/p' "$script")
    while ((${#log_of[@]} >= beside)); do end_one; done
    # times of products: none of the user's
    OMP_NUM_THREADS=$threads XDG_CACHE_HOME=$PWD/build/test_cache start check timeout --kill-after=10 $((8 * ${alone:-60})) "$script"
  done
  end_all
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
  cases 1800 build/asan/core_tests
  SFSDP_FUZZ_SEED=1000 SFSDP_FUZZ_INPUTS=10000 cases 300 build/asan/core_tests -tc="fuzz:*" # about 30 s
  check build/asan/fuzz all --seconds 30 --at-least 10000 # a third of what two loaded cores do in the slowest target
  ASAN_OPTIONS=detect_leaks=0 cases 1800 build/asan/torch_tests # LibTorch keeps registries until the end
  step scripts/build.sh tsan
  # TSan needs its address ranges free, which address randomization on new kernels breaks
  setarch "$(uname -m)" -R true 2>/dev/null && launcher=(setarch "$(uname -m)" -R)
  cases 1800 build/tsan/core_tests
  ;;
core)
  step ./setup.sh --tests --no-torch
  step scripts/build.sh core
  check scripts/check_format.sh
  check scripts/check_layers.sh
  check scripts/check_words.sh
  check scripts/check_compile_time.sh core
  check scripts/check_tidy.sh core "${tidy[@]}"
  cases 600 build/core/core_tests
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
      cases 600 "build/release/$tests" "-tc=*$word*"
      cases 600 "build/release/$tests" "-sf=*$word*" "-tce=*$word*" # the rest of the files of that name
    done
  else
    check scripts/check_format.sh
    check scripts/check_layers.sh
    check scripts/check_words.sh
    # each uses one core or a little more, or waits; clang-tidy takes what the others leave
    start_cases 2400 build/release/torch_tests
    start_cases 1800 build/release/core_tests
    start check scripts/check_compile_time.sh release
    start check nice -n 19 scripts/check_tidy.sh release "${tidy[@]}"
  fi
  e2e "$word"
  ;;
esac
finish
