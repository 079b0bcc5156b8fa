// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/passing_error.h"

namespace sfsdp {
namespace {

const char* cure_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "room on its disk";
    case EFBIG: return "a larger limit on the size of a file: ulimit -f unlimited";
    case EROFS:
    case EACCES:
    case EPERM: return "permission to write there";
    case EEXIST:
    case ENOTEMPTY: return "nothing of that name, or an empty folder";
    case EISDIR: return "a file of that name, not a folder";
    case ELOOP: return "no link of that name";
    case ENOENT: return "it, or its folder, to be there; with several hosts all ranks must see one";
    case EIO: return "a disk without errors; look at the system's log";
    default: return "a folder that can be read and written";
  }
}

}  // namespace

void fail_on_file(const std::string& path, std::string_view what, int error, Cure cure) {
  const char* own = cure ? cure(error) : nullptr;
  const std::string text =
      concat(path, ": ", what, ": ", std::strerror(error), "\n  expected ", own ? own : cure_of(error));
  if (may_pass(error)) throw PassingError(text);
  throw FileError(text);
}

Fd create_file(const std::string& path, Cure cure) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file) fail_on_file(path, "cannot be made", errno, cure);
  return file;
}

void write_file(int fd, std::span<const std::byte> bytes, int64_t offset, const std::string& path) {
  if (!write_fully(fd, bytes, offset)) fail_on_file(path, "cannot be written", errno);
}

void sync_file(int fd, const std::string& path, Cure cure) {
  // no second try: after a failed fsync the kernel has dropped the pages, and the next one would say all is well
  if (::fsync(fd) != 0) fail_on_file(path, "cannot be brought to the disk", errno, cure);
}

void sync_folder(const std::string& path, Cure cure) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail_on_file(path, "cannot be opened", errno, cure);
  sync_file(folder.get(), path, cure);
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_on_file(from, concat("cannot be renamed to ", to), errno);
  const std::string parent = std::filesystem::path(to).parent_path().string();
  sync_folder(parent.empty() ? "." : parent);
}

void write_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const Fd file = create_file(temporary);
  try {
    write_file(file.get(), std::as_bytes(std::span(text)), 0, temporary);
    sync_file(file.get(), temporary);
  } catch (const UserError&) {
    ::unlink(temporary.c_str());
    throw;
  }
  rename_file(temporary, path);
}

void write_new_file(const std::string& path, const std::function<void(int file, const std::string& path)>& body) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) throw UserError(concat(path, " is there already\n  expected a new name"));
  const std::string temporary = path + ".tmp";
  try {
    const Fd file = create_file(temporary);
    body(file.get(), temporary);
    sync_file(file.get(), temporary);
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  rename_file(temporary, path);
}

}  // namespace sfsdp
