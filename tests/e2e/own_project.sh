#!/usr/bin/env bash
# A stranger's CMake project uses sfsdp: what is installed suffices to build and run examples/own_model, which is the
# example of the README, examples/own_test and examples/own_pass; a project that adds sfsdp as a subfolder configures too; what is missing is named.
# Takes 90 s alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }

# The README shows the two files, nothing left out.
fenced() { awk -v fence='```'"$1" '$0 == "```" { on = 0 } on; $0 == fence { on = 1 }' README.md; }
fenced cpp | diff - examples/own_model/main.cpp || fail "README.md: the C++ block is not examples/own_model/main.cpp"
fenced cmake | diff - examples/own_model/CMakeLists.txt || fail "README.md: the CMake block is not examples/own_model/CMakeLists.txt"

cmake --install build/release --prefix "$dir/prefix" >"$dir/log" || fail "$(cat "$dir/log")"
# LIBTORCH and Torch_DIR of this shell must not help: the package knows the LibTorch it was built with
configure() { env -u LIBTORCH -u Torch_DIR cmake -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" >"$dir/log" 2>&1; }
configure -S examples/own_model -B "$dir/build" -DCMAKE_PREFIX_PATH="$dir/prefix" || fail "$(cat "$dir/log")"
cmake --build "$dir/build" >"$dir/log" || fail "$(cat "$dir/log")"

# A machine by name, beside the installed binary.
sed 's/^name = .*/name = "ours"/' machines/h200.toml >"$dir/prefix/share/sfsdp/machines/ours.toml"
(cd "$dir" && prefix/bin/sfsdp simulate --config "$OLDPWD/configs/llama3_debug.toml" --world 2 --machine ours >"$dir/log" 2>&1) ||
  fail "--machine ours: $(cat "$dir/log")"

# Two ranks, started by the installed launcher: rank 0's log shows the global loss, which falls to below a tenth.
"$dir/prefix/bin/sfsdp" launch -n 2 --log-rank 0 --exec "$dir/build/own_model" -- >"$dir/two" || fail "two ranks: exit code $?"
awk '/^step 1 / { first = $4 } /^step / { last = $4; ++steps } /^norm of up.weight [0-9.]+$/ { norm = 1 }
     END { exit !(steps == 20 && last < first / 10 && norm) }' "$dir/two" || fail "two ranks: $(cat "$dir/two")"
"$dir/build/own_model" >"$dir/one" || fail "one rank: exit code $?" # started by hand it is a world of its own
grep -q '^step 20 loss' "$dir/one" || fail "one rank: $(cat "$dir/one")"

# An exception that a launched program does not catch is told with its rank.
mkdir "$dir/fails"
sed 's/own_model/fails/g' examples/own_model/CMakeLists.txt >"$dir/fails/CMakeLists.txt"
cat >"$dir/fails/main.cpp" <<CPP
#include <sfsdp/comm/init.h>
#include <stdexcept>
int main() {
  auto world = sfsdp::init();
  if (world->rank() == 1) throw std::runtime_error("no data today");
  world->group("world", {0, 1})->barrier({"", ""});
}
CPP
configure -S "$dir/fails" -B "$dir/fails/build" -DCMAKE_PREFIX_PATH="$dir/prefix" || fail "$(cat "$dir/log")"
cmake --build "$dir/fails/build" >"$dir/log" || fail "$(cat "$dir/log")"
"$dir/prefix/bin/sfsdp" launch -n 2 --exec "$dir/fails/build/fails" -- >"$dir/told" 2>&1 && fail "a rank threw, the launcher's exit code is 0"
grep -q '^\[rank1\]: error on rank 1: no data today$' "$dir/told" || fail "an exception in a rank: $(cat "$dir/told")"

# A test of the user's own model on ranks that are threads.
configure -S examples/own_test -B "$dir/test" -DCMAKE_PREFIX_PATH="$dir/prefix" || fail "$(cat "$dir/log")"
cmake --build "$dir/test" >"$dir/log" || fail "$(cat "$dir/log")"
"$dir/test/own_test" >"$dir/threads" || fail "own test: exit code $?: $(cat "$dir/threads")"

# A pass of the user's own, registered from main() (docs/writing-a-pass.md): it did something, and the step trains.
configure -S examples/own_pass -B "$dir/pass" -DCMAKE_PREFIX_PATH="$dir/prefix" || fail "$(cat "$dir/log")"
cmake --build "$dir/pass" >"$dir/log" || fail "$(cat "$dir/log")"
"$dir/prefix/bin/sfsdp" launch -n 2 --log-rank 0 --exec "$dir/pass/own_pass" -- >"$dir/passes" || fail "own pass: exit code $?"
grep -Eq '^drop_mul_by_one .* products_dropped 2$' "$dir/passes" || fail "own pass: $(cat "$dir/passes")"
awk '/^step 1 / { first = $4 } /^step 20 / { last = $4 } END { exit !(last < first / 2) }' "$dir/passes" ||
  fail "own pass: $(cat "$dir/passes")"

# Lines of the pages that are in no fence: the setting of the pass, and the README's other loss and cuts over tp, in place of the example's.
indented() { sed -n "s/^    //; /^$2/,/^$3/p" "$1"; } # file, first and last line
indented docs/writing-a-pass.md 'register_drop_mul_by_one' 'options.pipeline' | while read -r line; do
  grep -qF "$line" examples/own_pass/main.cpp || fail "docs/writing-a-pass.md: not in examples/own_pass/main.cpp: $line"
done
mkdir "$dir/counts"
indented README.md 'auto loss = ' '};' >"$dir/counts/loss"
[[ $(wc -l <"$dir/counts/loss") == 5 ]] || fail "README.md: the other loss: $(cat "$dir/counts/loss")"
indented README.md 'auto mesh = init_device_mesh.*"tp"' 'auto step' >"$dir/counts/cuts"
[[ $(wc -l <"$dir/counts/cuts") == 3 ]] || fail "README.md: the lines for tp: $(cat "$dir/counts/cuts")"
head -2 "$dir/counts/cuts" >"$dir/counts/mesh"
tail -1 "$dir/counts/cuts" >"$dir/counts/step"
sed -e "/^  auto loss = /{r $dir/counts/loss" -e 'd}' -e "/^  auto mesh = /{r $dir/counts/mesh" -e 'd}' \
  -e "/^  auto step = /{r $dir/counts/step" -e 'd}' examples/own_model/main.cpp >"$dir/counts/main.cpp"
sed 's/own_model/counts/g' examples/own_model/CMakeLists.txt >"$dir/counts/CMakeLists.txt"
configure -S "$dir/counts" -B "$dir/counts/build" -DCMAKE_PREFIX_PATH="$dir/prefix" || fail "$(cat "$dir/log")"
cmake --build "$dir/counts/build" >"$dir/log" || fail "$(cat "$dir/log")"
"$dir/prefix/bin/sfsdp" launch -n 2 --log-rank 0 --exec "$dir/counts/build/counts" -- >"$dir/counted" ||
  fail "the README's other loss, over tp: exit code $?"
awk '/^step 20 / { loss[++n] = $4 } END { exit !(n == 2 && (loss[1] - loss[2]) ^ 2 < (1e-4 * loss[1]) ^ 2) }' "$dir/one" "$dir/counted" ||
  fail "no target is ignored, and tp changes nothing, but one rank and two with the README's other lines differ: $(tail -2 "$dir/one" "$dir/counted")"

# Headers that users include, each alone in a file: none leans on what another happens to include.
torch=$(sed -n 's/^SFSDP_TORCH_DIR:PATH=//p' build/release/CMakeCache.txt)
for header in sfsdp.h testing.h step/step.h parallel/data_parallel.h mesh/device_mesh.h comm/communicator.h comm/tcp/tcp_world.h \
  comm/thread/thread_world.h comm/null/null_world.h passes/registry.h passes/analysis/own_memory.h passes/print_ir.h; do
  echo "#include <sfsdp/$header>" |
    c++ -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I"$dir/prefix/include" -isystem "$torch/include" \
      -isystem "$torch/include/torch/csrc/api/include" -x c++ - || fail "sfsdp/$header needs another header before it"
done

# As a subfolder; only configured, as a build would compile everything again.
mkdir "$dir/parent"
cat >"$dir/parent/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(parent LANGUAGES CXX)
add_subdirectory("$PWD" sfsdp)
add_executable(own_model "$PWD/examples/own_model/main.cpp")
target_link_libraries(own_model PRIVATE sfsdp::sfsdp)
CMAKE
configure -S "$dir/parent" -B "$dir/parent/build" -DSFSDP_TORCH_DIR="$torch" || fail "$(cat "$dir/log")"
ninja -C "$dir/parent/build" -t commands own_model | tail -1 | grep -q 'libsfsdp_torch.*libtorch_cpu' ||
  fail "as a subfolder: own_model does not link sfsdp and LibTorch"
ninja -C "$dir/parent/build" -t targets all | grep -q 'core_tests' && fail "as a subfolder: sfsdp builds its tests"

# Nothing usable: one sentence says what to give.
configure -S examples/own_model -B "$dir/none" -DCMAKE_PREFIX_PATH="$dir/prefix" -DSFSDP_TORCH_DIR="$dir/nothing" &&
  fail "configured without LibTorch"
tr -s ' \n' ' ' <"$dir/log" | grep -q 'holds no lib/libtorch_cpu.so; give the folder of LibTorch' || fail "$(cat "$dir/log")"

# A second libstdc++ inside the program would crash in LibTorch.
configure -S examples/own_model -B "$dir/static" -DCMAKE_PREFIX_PATH="$dir/prefix" -DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ &&
  fail "configured with a static libstdc++"
tr -s ' \n' ' ' <"$dir/log" | grep -q 'links libstdc++ statically, and LibTorch needs the shared one' || fail "$(cat "$dir/log")"
