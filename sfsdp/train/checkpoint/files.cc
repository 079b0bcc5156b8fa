// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): renameat2
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sfsdp/base/check.h"

namespace sfsdp::train::checkpoint {
namespace {

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

const char* cure_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "room on this disk: free some, lower checkpoint.keep_latest_k, or set checkpoint.folder elsewhere";
    case EROFS:
    case EACCES:
    case EPERM: return "a folder that this user may write to; set job.dump_folder or checkpoint.folder";
    case ENOTDIR:
    case EEXIST: return "a folder there, not a file; move the file away, or set checkpoint.folder";
    default: return nullptr;
  }
}

void fail(const std::string& path, const std::string& what, int error) { fail_on_file(path, what, error, cure_of); }

Fd open_file(const std::string& path, int64_t* bytes) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block us
  if (file.get() < 0) fail(path, "cannot be opened", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, "cannot be looked at", errno);
  if (!S_ISREG(info.st_mode)) throw FileError(concat(path, ": is no regular file\n  expected one"));
  if (bytes) *bytes = info.st_size;
  return file;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  if (!write_fully(fd, bytes)) fail(path, "cannot be written", errno);
}

void write_past_cache(int fd, std::span<const std::byte> bytes, const std::string& path) {
  constexpr size_t kPage = 4096, kAtOnce = size_t{8} << 20;  // no disk has larger sectors
  const int flags = ::fcntl(fd, F_GETFL);
  const bool direct = ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
  while (direct && bytes.size() >= kPage) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size() / kPage * kPage, kAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL) break;  // some file systems say so only here. Source: open(2)
    if (written <= 0) fail(path, "cannot be written", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
    if (static_cast<size_t>(written) % kPage != 0) break;
  }
  ::fcntl(fd, F_SETFL, flags);
  write_all(fd, bytes, path);
}

void read_all(int fd, int64_t offset, std::span<std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read", errno);
    if (got == 0) throw FileError(concat(path, ": ends ", bytes.size(), " bytes too early\n  expected the whole file"));
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
}

void make_folders(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) fail(path, "is no folder", ENOTDIR);
    return;
  }
  const std::string parent = parent_of(path);
  if (parent != path) make_folders(parent);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) fail(path, "cannot be made", errno);
  sync_folder(parent, cure_of);
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, concat("cannot be renamed to ", to), errno);
}

bool exchange_paths(const std::string& one, const std::string& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail(one, concat("cannot be exchanged with ", other), errno);
}

std::vector<FolderEntry> list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (!folder) fail(path, "cannot be listed", errno);
  std::vector<FolderEntry> entries;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    struct stat info {};
    if (name == "." || name == "..") continue;
    if (::fstatat(::dirfd(folder), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
      entries.push_back({name, S_ISDIR(info.st_mode), S_ISLNK(info.st_mode), info.st_size});
  }
  ::closedir(folder);
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

std::string remove_folder(const std::string& path, const std::function<bool(const std::string&)>& is_ours) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode))  // what it points to is somebody else's
    return ::unlink(path.c_str()) == 0 ? "" : concat(path, ": ", std::strerror(errno));
  std::string foreign;
  try {
    for (const FolderEntry& entry : list_folder(path)) {
      const std::string file = path + "/" + entry.name;
      if (entry.is_folder || !is_ours(entry.name))
        foreign = file;
      else if (::unlink(file.c_str()) != 0)
        return concat(file, ": ", std::strerror(errno));
    }
  } catch (const UserError& error) {
    return error.what();
  }
  if (!foreign.empty()) return concat(foreign, ": sfsdp has not written it, so it stays");
  return ::rmdir(path.c_str()) == 0 ? "" : concat(path, ": ", std::strerror(errno));
}

std::string link_target(const std::string& path) {
  std::error_code none;
  return std::filesystem::read_symlink(path, none).string();
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace sfsdp::train::checkpoint
