// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/fd.h"

#include <unistd.h>

#include <cerrno>

namespace sfsdp {
namespace {

//   write_some: (bytes) -> how many were written, as write(2)
template <class Write>
bool write_until_done(std::span<const std::byte> bytes, Write write_some) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

// close() may report a write that failed late; what was synced before cannot be lost by it.
Fd::~Fd() {
  if (number_ >= 0) ::close(number_);
}

bool write_fully(int fd, std::span<const std::byte> bytes) {
  return write_until_done(bytes, [&](auto rest) { return ::write(fd, rest.data(), rest.size()); });
}

bool write_fully(int fd, std::span<const std::byte> bytes, int64_t offset) {
  const std::byte* begin = bytes.data();
  return write_until_done(
      bytes, [&](auto rest) { return ::pwrite(fd, rest.data(), rest.size(), offset + (rest.data() - begin)); });
}

}  // namespace sfsdp
