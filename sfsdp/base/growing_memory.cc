// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/growing_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "sfsdp/base/check.h"

namespace sfsdp {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// To whole pages, of the size that so many bytes are worth.
int64_t in_pages(int64_t bytes) {
  const int64_t page = bytes < kHugePage ? sysconf(_SC_PAGESIZE) : kHugePage;
  return (bytes + page - 1) / page * page;
}

// A file without a name. Nobody can cut it short: who reads it gets no SIGBUS.
Fd make_file(int64_t bytes) {
  Fd fd(memfd_create("sfsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("memfd_create");
  if (ftruncate(fd.get(), bytes) != 0) throw_errno(concat("a shared memory of ", bytes, " bytes"));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_errno("F_ADD_SEALS");
  return fd;
}

// A signal ends fallocate, and what it has done so far is undone: by pieces, so that it gets on under a timer's signals.
void allocate(int fd, int64_t from, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{32} << 20;
  for (const int64_t end = from + bytes; from < end;) {
    const int64_t piece = std::min(kPiece, end - from);
    if (fallocate(fd, 0, from, piece) == 0)
      from += piece;
    else if (errno != EINTR)
      throw_errno(concat(bytes, " bytes of shared memory"));
  }
}

}  // namespace

GrowingMemory::GrowingMemory(Kind kind, int64_t reserved)
    : owner_(getpid()), reserved_(in_pages(std::max<int64_t>(reserved, 1))) {
  if (kind == Kind::Shared) fd_ = make_file(reserved_);
  const int flags = MAP_NORESERVE | (fd_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  void* at = mmap(nullptr, static_cast<size_t>(reserved_), PROT_NONE, flags, fd_ ? fd_.get() : -1, 0);
  if (at == MAP_FAILED) throw_errno(concat("addresses for ", reserved_, " bytes"));
  begin_ = static_cast<std::byte*>(at);
  // A core dump would write, and so make, every page that nobody has touched.
  if (fd_) madvise(begin_, static_cast<size_t>(reserved_), MADV_DONTDUMP);
}

// A process that was forked from the owner leaves it its pages.
GrowingMemory::~GrowingMemory() {
  if (fd_ && getpid() == owner_) fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, reserved_);
  munmap(begin_, static_cast<size_t>(reserved_));
}

void GrowingMemory::grow(int64_t bytes) {
  if (bytes <= bytes_) return;
  errno = ENOMEM;
  if (bytes > reserved_) throw_errno(concat(bytes, " bytes where ", reserved_, " are reserved"));
  bytes = std::min(in_pages(bytes), reserved_);
  commit(bytes_, bytes - bytes_);
  bytes_ = bytes;
}

void GrowingMemory::commit(int64_t from, int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  // The system says at once that a file gets no more; a page of it that is touched without would be SIGBUS.
  if (fd_) allocate(fd_.get(), from, bytes);
  if (mprotect(begin_ + from, count, PROT_READ | PROT_WRITE) != 0) throw_errno(concat(bytes, " bytes"));
  madvise(begin_ + from, count, MADV_HUGEPAGE);  // a system without them gives small pages
  // A page that is first written in a step costs up to seven times a write.
  std::fill(begin_ + from, begin_ + from + bytes, std::byte{});
}

MemoryId GrowingMemory::id() const {
  struct stat status {};
  SFSDP_CHECK(fd_ && fstat(fd_.get(), &status) == 0, "id of a private memory");
  return {owner_, fd_.get(), status.st_dev, status.st_ino, static_cast<uint64_t>(reserved_)};
}

PeerMemory::PeerMemory(const MemoryId& id) : bytes_(id.bytes) {
  const std::string path = concat("/proc/", id.pid, "/fd/", id.fd);
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) throw_errno(path);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || status.st_dev != id.device || status.st_ino != id.inode ||
      static_cast<uint64_t>(status.st_size) != id.bytes) {
    errno = ESTALE;
    throw_errno(path);
  }
  void* at = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (at == MAP_FAILED) throw_errno(concat(path, ", ", bytes_, " bytes"));
  begin_ = static_cast<const std::byte*>(at);
  madvise(at, bytes_, MADV_DONTDUMP);
}

PeerMemory::~PeerMemory() { munmap(const_cast<std::byte*>(begin_), bytes_); }

}  // namespace sfsdp
