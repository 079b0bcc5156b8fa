// SPDX-License-Identifier: BSD-3-Clause
// Calls a target with inputs that are almost right, the same for the same seed, and looks at how each call ends:
//   fuzz TARGET|all [--seconds N | --inputs N] [--at-least N] [--seed N]
// Findings: anything thrown but UserError, a crash, a call of more than 10 s, and memory above 10 x input + 64 MiB (under
// AddressSanitizer, which counts it). The input of a finding is written to ./fuzz-TARGET-SEED.
//   returns: 0 without findings, 1 with some or with fewer inputs of a target than --at-least, 2 for wrong arguments
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/source_dir.h"
#include "target.h"

#if defined(__SANITIZE_ADDRESS__)
// As in sanitizer/allocator_interface.h, which clang installs and g++ does not.
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* memory);
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));
// A finding of either raises SIGABRT, so that its input is written down. Short stacks and a small quarantine: twice the inputs.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:malloc_context_size=4:quarantine_size_mb=32";
}
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1"; }
#endif

namespace sfsdp::fuzz {

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

std::string as_file(std::string_view bytes) {
  static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  SFSDP_CHECK(fd >= 0 && ftruncate(fd, 0) == 0, "memfd: ", std::strerror(errno));
  SFSDP_CHECK(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "memfd: no space");
  return concat("/proc/self/fd/", fd);
}

std::string source_file(const std::string& path) {
  std::ifstream in(sfsdp::testing::source_dir() + "/" + path, std::ios::binary);
  SFSDP_CHECK(in.good(), path, " cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

namespace {

// ---- inputs ---------------------------------------------------------------------------------------------------------

constexpr std::array kWords = {"0",
                               "-1",
                               "1e400",
                               "1e-400",
                               "nan",
                               "inf",
                               "null",
                               "true",
                               "{}",
                               "[]",
                               "[[[[[[[[",
                               "{\"a\":",
                               "\"",
                               "\\u0000",
                               "\\ud800",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551615",
                               "-9223372036854775808",
                               "4294967296",
                               "1000000000000",
                               "..",
                               "../../x",
                               "/",
                               "\xff\xfe",
                               "\xf0\x9f\x98\x80",
                               "\n",
                               "=",
                               "#",
                               ",",
                               ":",
                               "%",
                               "%0",
                               "::",
                               "\r\n",
                               " ",
                               "\t"};

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, uint64_t seed) : seeds_(seeds), engine_(seed) {}

  std::string input() {
    std::string text = seeds_[below(seeds_.size())];
    for (size_t changes = 1 + below(below(8) == 0 ? 32 : 4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(engine_() % limit); }

  // A piece of `text`: [begin, begin + length), mostly short.
  std::pair<size_t, size_t> piece(const std::string& text) {
    const size_t begin = below(text.size() + 1), most = text.size() - begin;
    return {begin, std::min(most, below(below(4) == 0 ? 4096 : 32))};
  }

  void change(std::string& text) {
    const auto [at, length] = piece(text);
    switch (below(10)) {
      case 0:  // a bit
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1: text.insert(at, 1, static_cast<char>(below(256))); break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(below(text.size() + 1), text.substr(at, length)); break;  // a piece twice
      case 4: {                                                                     // from another input
        const std::string& other = seeds_[below(seeds_.size())];
        const auto [from, count] = piece(other);
        text.insert(at, other.substr(from, count));
        break;
      }
      case 5: text.insert(at, kWords[below(kWords.size())]); break;
      case 6: replace_number(text, at); break;
      case 7: text.resize(at); break;  // cut short
      case 8:                          // a length, an offset
        if (at + 8 <= text.size()) {
          const uint64_t value = below(2) ? engine_() >> below(64) : uint64_t{0} - below(16);
          std::memcpy(text.data() + at, &value, below(2) ? 8 : 4);
        }
        break;
      default: {  // much of one thing, up to 64 KiB
        const std::string word = kWords[below(kWords.size())];
        std::string many;
        for (size_t count = size_t{1} << below(13); count > 0 && many.size() < (1 << 16); --count) many += word;
        text.insert(at, many);
      }
    }
    if (text.size() > (1 << 20)) text.resize(1 << 20);
  }

  // The next number after `at` becomes another.
  void replace_number(std::string& text, size_t at) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    const std::string other = below(2) ? std::to_string(engine_() >> below(64)) : kWords[below(kWords.size())];
    text.replace(begin, end - begin, other);
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 engine_;
};

// ---- one call -------------------------------------------------------------------------------------------------------

std::atomic<int64_t> live_bytes = 0, most_bytes = 0;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCounts = true;
void on_malloc(const volatile void* memory, size_t /*size*/) {
  const auto size = static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
  const int64_t live = live_bytes += size;
  if (live > most_bytes) most_bytes = live;
}
void on_free(const volatile void* memory) {
  if (memory) live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}
#else
constexpr bool kCounts = false;
#endif

// What the handlers of crashes and hangs write down.
std::string current_input, current_name;

void write_input() {
  const int fd = open(current_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && write(fd, current_input.data(), current_input.size()) >= 0) close(fd);
}

void on_end(int signal) {
  write_input();
  dprintf(STDERR_FILENO, "%s: %s\n", current_name.c_str(), signal == SIGALRM ? "more than 10 s" : "crash");
  std::signal(signal, SIG_DFL);
  raise(signal == SIGALRM ? SIGABRT : signal);
}

void watch() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
#endif
  for (const int signal : {SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(signal, on_end);
}

struct Called {
  std::string finding;  // "" or what is wrong
  int64_t used = 0;     // bytes of memory at its fullest moment, above what lived before
};

Called call(const Target& target, const std::string& input) {
  Called called;
  const int64_t before = live_bytes;
  most_bytes = before;
  alarm(10);
  try {
    target.read(input);
  } catch (const UserError&) {
  } catch (const std::exception& error) {
    called.finding = error.what();
  }
  alarm(0);
  called.used = most_bytes - before;
  if (called.finding.empty() && kCounts && called.used > 10 * static_cast<int64_t>(input.size()) + (64 << 20))
    called.finding = concat("took ", called.used, " bytes of memory for an input of ", input.size());
  return called;
}

// That both kinds of findings are found, and what is allowed is not.
void check_that_it_finds() {
  static constexpr auto take = [](size_t bytes) {
    const std::vector<char> kept(bytes, 'x');
    SFSDP_CHECK(kept.back() == 'x', "the compiler has left out what takes memory");
  };
  const Target fits = {"fits", [](std::string_view input) { take(10 * input.size() + (63 << 20)); }};
  const Target large = {"large", [](std::string_view input) { take(10 * input.size() + (65 << 20)); }};
  const Target throws = {"throws", [](std::string_view) { throw std::runtime_error("no UserError"); }};
  const std::string input(1 << 20, ' ');
  SFSDP_CHECK(call(fits, input).finding.empty() && call(throws, input).finding == "no UserError",
              "the driver is wrong");
  SFSDP_CHECK(!kCounts || call(large, input).finding.starts_with("took "), "memory is not counted");
}

// ---- the run --------------------------------------------------------------------------------------------------------

struct Limits {
  double seconds = 30;
  uint64_t inputs = UINT64_MAX;
  uint64_t at_least = 0;  // inputs
  uint64_t first = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

uint64_t run(const Target& target, const Limits& limits) {
  const std::vector<std::string> seeds = target.seeds();
  for (const std::string& seed : seeds)
    target.read(seed);  // not a finding but a seed that is wrong: let it end the program
  const auto start = std::chrono::steady_clock::now();
  uint64_t findings = 0, done = 0;
  int64_t most = 0;
  for (; done < limits.inputs; ++done) {
    if (seconds_since(start) >= limits.seconds || findings >= 10) break;
    const uint64_t seed = limits.first + done;
    current_input = target.change && seed % 4 != 0 ? target.change(seeds[seed / 4 % seeds.size()], seed)
                                                   : Mutator(seeds, seed).input();
    current_name = concat("fuzz-", target.name, "-", seed);
    const Called called = call(target, current_input);
    most = std::max(most, called.used);
    if (called.finding.empty()) continue;
    ++findings;
    write_input();
    std::cout << current_name << ": " << called.finding << std::endl;
  }
  std::cout << target.name << ": " << done << " inputs in " << static_cast<int64_t>(seconds_since(start)) << " s, "
            << findings << " findings";
  if (kCounts) std::cout << ", at most " << (most + (1 << 20) - 1) / (1 << 20) << " MiB for one";
  std::cout << std::endl;
  const uint64_t at_least = limits.at_least / target.counts;
  if (done >= at_least) return findings;
  std::cout << target.name << ": expected at least " << at_least << " inputs" << std::endl;
  return findings + 1;
}

int main_of(const std::vector<std::string>& args) {
  Limits limits;
  std::string wanted;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool has_value = i + 1 < args.size();
    if (args[i] == "--seconds" && has_value) {
      limits.seconds = std::stod(args[++i]);
    } else if (args[i] == "--inputs" && has_value) {
      limits.inputs = std::stoull(args[++i]);
      limits.seconds = 1e9;
    } else if (args[i] == "--at-least" && has_value) {
      limits.at_least = std::stoull(args[++i]);
    } else if (args[i] == "--seed" && has_value) {
      limits.first = std::stoull(args[++i]);
    } else {
      wanted = args[i];
    }
  }
  uint64_t findings = 0, ran = 0;
  for (const Target& target : targets()) {
    if (wanted != "all" && wanted != target.name) continue;
    ++ran;
    findings += run(target, limits);
  }
  if (ran == 0) {
    std::cerr << "usage: fuzz TARGET|all [--seconds N | --inputs N] [--at-least N] [--seed N]\ntargets:";
    for (const Target& target : targets()) std::cerr << " " << target.name;
    std::cerr << std::endl;
    return 2;
  }
  return findings == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sfsdp::fuzz

int main(int argc, char** argv) {
  sfsdp::fuzz::watch();
  sfsdp::fuzz::check_that_it_finds();
  return sfsdp::fuzz::main_of({argv + 1, argv + argc});
}
