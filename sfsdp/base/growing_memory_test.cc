// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/growing_memory.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <system_error>

namespace sfsdp::growing_memory_test {
namespace {

using Kind = GrowingMemory::Kind;

TEST_CASE("growing memory stays where it is, keeps what it holds, and begins as zeros") {
  for (const Kind kind : {Kind::Private, Kind::Shared}) {
    GrowingMemory memory(kind, int64_t{1} << 40);  // more than any machine has
    std::byte* const begin = memory.begin();
    memory.grow(5000);
    CHECK(memory.bytes() == 8192);
    std::fill(begin, begin + 8192, std::byte{7});
    memory.grow(3);
    CHECK(memory.bytes() == 8192);
    memory.grow(3'000'000);
    CHECK(memory.begin() == begin);
    CHECK(memory.bytes() == 4 << 20);
    CHECK(std::all_of(begin, begin + 8192, [](std::byte b) { return b == std::byte{7}; }));
    CHECK(std::all_of(begin + 8192, begin + memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  }
  GrowingMemory small(Kind::Private, 10'000);
  CHECK_THROWS_AS(small.grow(20'000), std::system_error);
}

TEST_CASE("a shared memory is read by whoever has its id, and is gone with its owner") {
  std::optional<GrowingMemory> memory(std::in_place, Kind::Shared, 1 << 22);
  memory->grow(100);
  memory->begin()[99] = std::byte{5};
  const MemoryId id = memory->id();
  const PeerMemory peer(id);
  CHECK(peer.begin()[99] == std::byte{5});
  memory->begin()[98] = std::byte{6};  // later
  CHECK(peer.begin()[98] == std::byte{6});
  for (MemoryId other : {id, id, id, id}) {
    static int which = 0;
    switch (which++) {
      case 0: other.inode += 1; break;
      case 1: other.bytes -= 4096; break;
      case 2: other.fd = 1'000'000; break;
      default: other.pid = 0x7fffffff;
    }
    CHECK_THROWS_AS(PeerMemory{other}, std::system_error);
  }
  memory.reset();
  CHECK(peer.begin()[99] == std::byte{0});  // a late reader gets zeros, no signal
  CHECK_THROWS_AS(PeerMemory{id}, std::system_error);
}

TEST_CASE("a shared memory that a limit of file sizes forbids is an error, no signal") {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);  // as sfsdp does
  const rlimit small = {1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  CHECK_THROWS_AS(GrowingMemory(Kind::Shared, 1 << 22), std::system_error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace sfsdp::growing_memory_test
