// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/checkpoint_bench.h"

#include <fcntl.h>
#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/saver.h"

namespace {

namespace fs = std::filesystem;
using namespace sfsdp::train::checkpoint;

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double clock_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
// What threads other than this one have taken of the cores.
double cpu_of_others() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

void run(const std::string& command) { SFSDP_CHECK(std::system((command + " 2>/dev/null").c_str()) == 0, command); }

void forget_pages(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

struct Figures {
  std::vector<double> seconds;
  double median() {
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }
  void print(const char* what, double bytes) {
    const double middle = median();
    std::printf("  %-44s %8.1f ms (%.1f to %.1f)  %6.2f GB/s\n", what, 1e3 * middle, 1e3 * seconds.front(),
                1e3 * seconds.back(), bytes / middle / 1e9);
  }
};

// 64 tensors in one stretch of memory.
struct State {
  explicit State(int64_t mib) : memory(static_cast<size_t>(mib << 20)) {
    for (size_t i = 0; i < memory.size(); i += 8) std::memcpy(&memory[i], &(seed = seed * 6364136223846793005u + 1), 8);
    const int64_t numel = static_cast<int64_t>(memory.size()) / 64 / 4;
    for (int64_t i = 0; i < 64; ++i) {
      Piece p;
      p.name = sfsdp::concat("layers.", i, ".weight");
      p.shape = {numel};
      p.end = numel;
      p.data = &memory[static_cast<size_t>(i * numel * 4)];
      pieces.push_back(p);
    }
  }
  uint64_t seed = 1;
  std::vector<std::byte> memory;
  std::vector<Piece> pieces;
};

}  // namespace

void measure_checkpoints(int64_t mib, int64_t rounds, const std::string& folder) {
  fs::create_directories(folder);
  State state(mib);
  const auto copy = std::make_unique_for_overwrite<std::byte[]>(state.memory.size());
  Figures dd_write, save, dd_cold, load_cold, dd_warm, load_warm, one_copy, stall, copy_cpu, beside;
  Store store(folder + "/checkpoints");
  store.lock();
  Saver saver(store, nullptr, /*keep=*/0);
  const std::string raw = folder + "/dd", read_all = sfsdp::concat("dd of=/dev/null bs=4M if=", raw);
  const auto save_now = [&](bool in_background) {
    SaveRequest request;
    request.pieces = state.pieces;
    request.about.run.step = 1;
    request.in_background = in_background;
    saver.start(std::move(request));
    SaveResult result = *saver.wait();
    SFSDP_CHECK(result.failure.empty(), result.failure);
    return result;
  };
  const auto load_all = [&] { load(open_checkpoint(store.path_of(1)), store.path_of(1), state.pieces); };
  for (int64_t round = 0; round < rounds; ++round) {
    fs::remove(raw);
    fs::remove_all(store.path_of(1));
    ::sync();
    dd_write.seconds.push_back(
        seconds_of([&] { run(sfsdp::concat("dd if=/dev/zero bs=4M conv=fsync count=", mib / 4, " of=", raw)); }));
    save.seconds.push_back(seconds_of([&] { save_now(false); }));
    forget_pages(folder);
    dd_cold.seconds.push_back(seconds_of([&] { run(read_all); }));
    load_cold.seconds.push_back(seconds_of(load_all));
    dd_warm.seconds.push_back(seconds_of([&] { run(read_all); }));
    load_warm.seconds.push_back(seconds_of(load_all));
    one_copy.seconds.push_back(seconds_of([&] { std::memcpy(copy.get(), state.memory.data(), state.memory.size()); }));
    const double copying = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    std::memcpy(copy.get(), state.memory.data(), state.memory.size());
    copy_cpu.seconds.push_back(clock_seconds(CLOCK_THREAD_CPUTIME_ID) - copying);
    const double before = cpu_of_others();
    stall.seconds.push_back(save_now(true).stall_seconds);
    beside.seconds.push_back(cpu_of_others() - before);
  }
  // the first copies met fresh memory
  for (Figures* f : {&one_copy, &stall, &copy_cpu, &beside}) f->seconds.erase(f->seconds.begin());
  const auto bytes = static_cast<double>(mib << 20);
  std::printf("%lld MiB, %lld rounds\n", static_cast<long long>(mib), static_cast<long long>(rounds));
  dd_write.print("write: dd if=/dev/zero bs=4M conv=fsync", bytes);
  save.print("write: checkpoint", bytes);
  dd_cold.print("read from disk: dd bs=4M of=/dev/null", bytes);
  load_cold.print("read from disk: checkpoint", bytes);
  dd_warm.print("read from page cache: dd", bytes);
  load_warm.print("read from page cache: checkpoint", bytes);
  one_copy.print("memcpy of the state", bytes);
  stall.print("a step waits for an asynchronous save", bytes);
  copy_cpu.print("of a core, for one memcpy of the state", bytes);
  beside.print("of the cores, beside the steps", bytes);
  std::printf(
      "  write %.0f %% of dd, read %.0f %% from disk, %.0f %% from page cache; async %.2f x one copy, %.2f on another "
      "core\n",
      100 * dd_write.median() / save.median(), 100 * dd_cold.median() / load_cold.median(),
      100 * dd_warm.median() / load_warm.median(), stall.median() / one_copy.median(),
      beside.median() / copy_cpu.median());
  fs::remove_all(folder);
}
