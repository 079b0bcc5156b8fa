// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "sfsdp/base/strings.h"

namespace sfsdp::comm {
namespace {

constexpr size_t kBytes = sizeof(std::atomic<int64_t>);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace

void ProgressPage::Unmap::operator()(std::atomic<int64_t>* page) const { munmap(page, kBytes); }

ProgressPage::ProgressPage(int fd) : fd_(fd) {
  void* place = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (place != MAP_FAILED) steps_.reset(static_cast<std::atomic<int64_t>*>(place));
}

ProgressPage ProgressPage::make() {
  const int fd = memfd_create("sfsdp-progress", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kBytes) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    throw std::system_error(error, std::generic_category(), "no shared page for the progress of ranks");
  }
  ProgressPage page(fd);
  if (!page.steps_) throw std::system_error(errno, std::generic_category(), "no memory for the progress of ranks");
  page.report(kNoReader);
  return page;
}

std::optional<ProgressPage> ProgressPage::from_environment() {
  const char* text = std::getenv(kVariable);
  const std::optional<int64_t> number = text ? parse_int(text) : std::nullopt;
  if (!number) return std::nullopt;
  unsetenv(kVariable);
  struct stat status {};
  const int fd = static_cast<int>(*number);
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != static_cast<off_t>(kBytes))
    return std::nullopt;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  ProgressPage page(fd);
  if (!page.steps_) return std::nullopt;
  if (page.steps() == kNoReader) page.report(kNoStep);
  return page;
}

}  // namespace sfsdp::comm
