// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
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
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/data/documents.h"
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
  struct Seen {
    FileStamp stamp;
    uint64_t hash = 0;
    bool operator==(const Seen&) const = default;
  };

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

  Seen look_at(const std::string& path) {
    const auto stamp = stamp_of(path);
    if (!stamp) fail(path, errno, "an input that can be read; set --training.dataset_path");
    const auto found = seen_.find(path);
    if (found != seen_.end() && found->second.stamp == stamp) return found->second;
    const Seen seen = {*stamp, hash_file(path)};
    // A file written just now could change again without another time.
    const bool settled = stamp->modified_ns < (int64_t{std::time(nullptr)} - 2) * 1000000000;
    if (settled && stamp_of(path) == stamp) seen_[path] = seen;
    return seen;
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
  std::vector<SeenInputs::Seen> before;
  for (const std::string& input : options.inputs)
    key.add(concat('\n', hex(before.emplace_back(seen.look_at(input)).hash)));
  seen.save();
  const std::string folder = concat(options.folder, '/', hex(key.value()));
  if (TokenFolder::is_token_folder(folder)) return folder;
  // What an earlier call left is gone on with if the inputs still have its times, and removed otherwise.
  ContentHash times;
  for (const SeenInputs::Seen& input : before) times.add(concat(input.stamp.modified_ns, ' '));
  const std::string unfinished = concat(folder, ".unfinished-", hex(times.value()));
  for (const auto& entry : fs::directory_iterator(options.folder))
    if (entry.path().string().starts_with(folder) && entry.path() != unfinished) fs::remove_all(entry.path());
  make(unfinished);
  SFSDP_CHECK(TokenFolder::is_token_folder(unfinished), unfinished, " is not complete");
  for (size_t i = 0; i < before.size(); ++i)
    if (seen.look_at(options.inputs[i]) != before[i]) {
      fs::remove_all(unfinished);
      throw InputChanged(concat(options.inputs[i], ": changed while it was read",
                                "\n  expected a file that nobody writes; begin again once it is complete"));
    }
  rename_file(unfinished, folder);
  return folder;
}

}  // namespace sfsdp::train
