// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_times.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::cost {
namespace {

// sfsdp products 1
// key Some CPU; 1 thread; …
// f32:512x768x768:nt aten.mm 0.0071 onednn.matmul 0.0025
// hash 0123456789abcdef            of all above
constexpr std::string_view kFirst = "sfsdp products 1\n";
constexpr int64_t kMostBytes = 1 << 20;

// Once it was full of other models' shapes, it begins anew.
constexpr size_t kMostShapes = 4000;

std::string print(std::string_view key, const ProductTimes& times) {
  std::string text = concat(kFirst, "key ", key, '\n');
  for (const auto& [shape, seconds] : times) {
    text += to_string(shape);
    for (const auto& [kernel, value] : seconds) text += concat(' ', kernel, ' ', shortest(value));
    text += '\n';
  }
  return concat(text, "hash ", hex(xxh3(text)), '\n');
}

bool parse_line(const std::string& line, ProductTimes& times) {
  const std::vector<std::string> words = split(line, ' ');
  const auto shape = ir::parse_product_shape(words[0]);
  if (!shape || words.size() % 2 == 0) return false;
  for (size_t i = 1; i < words.size(); i += 2) {
    const auto seconds = parse_double(words[i + 1]);
    if (words[i].empty() || !seconds || !(*seconds > 0)) return false;
    times[*shape][words[i]] = *seconds;
  }
  return true;
}

// "": all is well.
std::string parse(const std::string& text, std::string_view key, ProductTimes& times) {
  if (!text.starts_with(kFirst)) return "it does not begin as such a file";
  const size_t last = text.rfind("hash ");
  if (last == std::string::npos || text.substr(last) != concat("hash ", hex(xxh3(text.substr(0, last))), '\n'))
    return "it is damaged";
  const std::vector<std::string> lines = split(std::string_view(text).substr(0, last), '\n');
  if (lines[1] != concat("key ", key)) return "it is of another machine";
  for (size_t i = 2; i + 1 < lines.size(); ++i)
    if (!parse_line(lines[i], times)) return concat("line ", i + 1, " is no time of a product");
  return "";
}

// One writer at a time, of threads, processes and hosts. Whoever dies lets go; one that is stopped, or a file system without locks,
// holds nobody up for long.
class WriteLock {
 public:
  explicit WriteLock(const std::string& folder)
      : file_(::open((folder + "/products.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
    const auto deadline = std::chrono::steady_clock::now() + kMostWait;
    while (file_ && !held_) {
      held_ = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
      if (!held_ && (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > deadline)) break;
      if (!held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool is_held() const { return held_; }

 private:
  static constexpr std::chrono::seconds kMostWait{2};
  Fd file_;  // whose end is the lock's
  bool held_ = false;
};

// A name that nobody else writes to, on no other host and in no other container either: PATH.HOST-DIGITS.
std::string temporary_of(const std::string& path) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    fail_on_file(path, "no random number for its temporary name", errno);
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return concat(path, '.', host.data(), '-', hex(number));
}

// What writers that were killed have left of the file.
void remove_temporaries(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string prefix = file.filename().string() + ".";
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(file.parent_path(), ignored), end; !ignored && it != end;
       it.increment(ignored))
    if (it->path().filename().string().starts_with(prefix)) ::unlink(it->path().c_str());
}

// New: nobody's file is emptied.
Fd create_temporary(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file) fail_on_file(path, "cannot be made", errno);
  return file;
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with('/')) return cache + "/sfsdp";  // a relative one is to be ignored
  return home.empty() ? "" : home + "/.cache/sfsdp";
}

std::string products_file(const std::string& folder, std::string_view key) {
  return concat(folder, "/products-", hex(xxh3(key)), ".txt");
}

KeptProducts read_product_times(const std::string& folder, std::string_view key) {
  KeptProducts kept;
  const std::string path = products_file(folder, key);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return kept;
  if (!S_ISREG(status.st_mode) || status.st_size > kMostBytes) {
    kept.fault = path + ": it is no file of such a size";
    return kept;
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string fault = file ? parse(text.str(), key, kept.times) : "it cannot be read";
  if (fault.empty()) return kept;
  return {{}, path + ": " + fault};
}

void add_product_times(const std::string& folder, std::string_view key, const ProductTimes& times) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw UserError(concat(folder, ": cannot be made: ", failed.message(), "\n  expected a folder to write in"));
  const std::string path = products_file(folder, key), temporary = temporary_of(path);
  const WriteLock lock(folder);
  if (lock.is_held()) remove_temporaries(path);
  ProductTimes all = read_product_times(folder, key).times;
  if (all.size() + times.size() > kMostShapes) all.clear();
  for (const auto& [shape, seconds] : times)
    for (const auto& [kernel, value] : seconds) all[shape][kernel] = value;
  const std::string text = print(key, all);
  try {
    const Fd file = create_temporary(temporary);
    write_file(file.get(), std::as_bytes(std::span(text)), 0, temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_on_file(path, "cannot be written", errno);
  } catch (const UserError&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace sfsdp::cost
