// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/data/token_file.h"

namespace sfsdp::train {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int error, std::string_view expected) {
  throw UserError(concat(path, ": ", std::strerror(error), "\n  expected ", expected));
}

// Held by one process at a time; the system frees it when that process ends, in whatever way.
Fd lock_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) fail(path, errno, "a folder that can be written; set --job.dump_folder");
  int status = 0;
  while ((status = ::flock(fd.get(), LOCK_EX)) != 0 && errno == EINTR) continue;
  if (status != 0) fail(path, errno, "a disk that can lock files; set --job.dump_folder");
  return fd;
}

// What a file looks like from outside.
struct Stamp {
  int64_t bytes = 0, modified_ns = 0;
  bool operator==(const Stamp&) const = default;
};

Stamp stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail(path, errno, "an input that can be read; set --training.dataset_path");
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec};
}

uint64_t hash_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ContentHash hash;
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
    hash.add(std::string_view(piece.data(), static_cast<size_t>(file.gcount())));
  if (!file.eof()) fail(path, errno, "an input that can be read; set --training.dataset_path");
  return hash.value();
}

// Hashes of files as they were when last seen, a line each in inputs.txt: bytes, time, hash, path.
class SeenInputs {
 public:
  explicit SeenInputs(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      Seen seen;
      std::string name;
      if (words >> seen.stamp.bytes >> seen.stamp.modified_ns >> seen.hash && std::getline(words >> std::ws, name))
        seen_[name] = seen;
    }
  }

  uint64_t hash(const std::string& path) {
    const Stamp stamp = stamp_of(path);
    const auto found = seen_.find(path);
    if (found != seen_.end() && found->second.stamp == stamp) return found->second.hash;
    const uint64_t hash = hash_file(path);
    // A file written just now could change again without another time.
    const bool settled = stamp.modified_ns < (int64_t{std::time(nullptr)} - 2) * 1000000000;
    if (settled && stamp_of(path) == stamp) seen_[path] = {stamp, hash};
    return hash;
  }

  void save() const {
    const std::string fresh = path_ + ".new";
    std::ofstream file(fresh);
    for (const auto& [path, seen] : seen_)
      if (path.find('\n') == std::string::npos)
        file << seen.stamp.bytes << ' ' << seen.stamp.modified_ns << ' ' << seen.hash << ' ' << path << '\n';
    file.close();
    std::error_code ignored;  // without it, inputs are hashed once more
    if (file) fs::rename(fresh, path_, ignored);
  }

 private:
  struct Seen {
    Stamp stamp;
    uint64_t hash = 0;
  };
  std::string path_;
  std::map<std::string, Seen> seen_;
};

}  // namespace

std::string cached_tokens(const TokenCacheOptions& options,
                          const std::function<void(const std::string& folder)>& make) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) fail(options.folder, error.value(), "a folder that can be written; set --job.dump_folder");
  const Fd lock = lock_file(options.folder + "/lock");
  SeenInputs seen(options.folder + "/inputs.txt");
  ContentHash key;
  key.add(options.recipe);
  for (const std::string& input : options.inputs) key.add(concat('\n', hex(seen.hash(input))));
  seen.save();
  const std::string folder = concat(options.folder, '/', hex(key.value()));
  if (!TokenFolder::is_token_folder(folder)) make(folder);
  SFSDP_CHECK(TokenFolder::is_token_folder(folder), folder, " is not complete");
  return folder;
}

}  // namespace sfsdp::train
