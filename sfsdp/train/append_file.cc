// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw UserError(concat(path, ": ", why, "\n  expected a file that can be written; set --job.dump_folder"));
}

}  // namespace

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(path_, error.message());
  fd_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) fail(path_, std::strerror(errno));
}

void AppendFile::write(std::string_view bytes) {
  if (!write_fully(fd_.get(), std::as_bytes(std::span(bytes)))) fail(path_, std::strerror(errno));
}

void AppendFile::truncate(int64_t size) {
  if (::ftruncate(fd_.get(), size) != 0) fail(path_, std::strerror(errno));
}

}  // namespace sfsdp::train
