// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/call.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

const char* to_string(CallKind kind) {
  constexpr std::array kNames = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                 "barrier"};  // in enum order
  return kNames.at(static_cast<size_t>(kind));
}

std::string name_of(const Call& call) {
  return call.info.name.empty() ? to_string(call.kind) : concat(to_string(call.kind), " ", call.info.name);
}

}  // namespace

std::string Call::text() const {
  std::string text = name_of(*this);
  if (kind == CallKind::Barrier) return text;
  text += concat(" of ", bytes, " bytes");
  if (dtype) text += concat(", ", ir::to_string(*dtype), " ", ir::to_string(op));
  if (kind == CallKind::Broadcast) text += concat(" from group rank ", root);
  return text;
}

Call all_gather_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info) {
  SFSDP_CHECK(out_bytes == in_bytes * static_cast<size_t>(size), "all_gather ", info.name, ": ", size, " x ", in_bytes,
              " bytes into ", out_bytes);
  return {CallKind::AllGather, static_cast<int64_t>(out_bytes), std::nullopt, ReduceOp::Sum, 0, info};
}

Call reduce_scatter_call(size_t in_bytes, size_t out_bytes, int size, ir::DType dtype, ReduceOp op,
                         const CallInfo& info) {
  SFSDP_CHECK(in_bytes == out_bytes * static_cast<size_t>(size), "reduce_scatter ", info.name, ": ", in_bytes,
              " bytes into ", size, " x ", out_bytes);
  check_reducible(out_bytes, dtype);
  return {CallKind::ReduceScatter, static_cast<int64_t>(in_bytes), dtype, op, 0, info};
}

Call all_reduce_call(size_t bytes, ir::DType dtype, ReduceOp op, const CallInfo& info) {
  check_reducible(bytes, dtype);
  return {CallKind::AllReduce, static_cast<int64_t>(bytes), dtype, op, 0, info};
}

Call broadcast_call(size_t bytes, int root, int size, const CallInfo& info) {
  SFSDP_CHECK(root >= 0 && root < size, "broadcast ", info.name, ": root ", root, " of ", size);
  return {CallKind::Broadcast, static_cast<int64_t>(bytes), std::nullopt, ReduceOp::Sum, root, info};
}

Call barrier_call(const CallInfo& info) { return {CallKind::Barrier, 0, std::nullopt, ReduceOp::Sum, 0, info}; }

CallSite make_call_site(const std::string& group, const std::vector<int>& ranks, int global_rank, int world_size) {
  CallSite site{group, ranks, -1, world_size};
  for (size_t i = 0; i < ranks.size(); ++i) {
    SFSDP_CHECK(ranks[i] >= 0 && ranks[i] < world_size, "group ", group, ": rank ", ranks[i], " of ", world_size);
    SFSDP_CHECK(std::count(ranks.begin(), ranks.end(), ranks[i]) == 1, "group ", group, ": rank ", ranks[i], " twice");
    if (ranks[i] == global_rank) site.rank = static_cast<int>(i);
  }
  SFSDP_CHECK(site.rank >= 0, "rank ", global_rank, " asks for the group ", group, " without being in it");
  return site;
}

uint64_t Call::hash() const { return hash_path(text()); }

std::string error_text(const CallSite& site, const Call& call, uint64_t sequence, const std::string& cause) {
  return concat("CommError on rank ", site.global_rank(), " of ", site.world_size, ": ", name_of(call), " over ",
                site.group, ", sequence ", sequence, ", ", call.bytes, " bytes",
                call.info.module_path.empty() ? "" : " at ", call.info.module_path, "\n  ", cause);
}

std::string disagreement_text(int first_rank, const std::string& first, int rank, const std::string& call) {
  return concat("ranks disagree: rank ", first_rank, " calls ", first, ", rank ", rank, " calls ", call,
                "; every rank must run the same program: compare their command lines and config files");
}

std::string silence_text(const std::vector<Silence>& silent, uint64_t others_min, uint64_t others_max,
                         int64_t waited_ms, const std::string& why) {
  constexpr size_t kMaxNamed = 8;  // of up to 128; the rest is counted
  if (silent.empty()) return concat("no answer in ", waited_ms, " ms, although every rank has made the call");
  std::vector<std::string> names, finished;
  for (const Silence& s : silent) {
    if (names.size() == kMaxNamed) break;
    names.push_back(std::to_string(s.rank));
    finished.push_back(concat("rank ", s.rank, " finished sequence ", s.finished));
  }
  const size_t unnamed = silent.size() - names.size();
  const std::string more = unnamed == 0 ? "" : concat(" and ", unnamed, " more");
  const std::string progress =
      silent.size() == 1 ? concat("it finished sequence ", silent[0].finished) : join(finished, ", ") + more;
  const std::string others = others_min > others_max    ? ""
                             : others_min == others_max ? concat(", all others ", others_max)
                                                        : concat(", the others ", others_min, " to ", others_max);
  return concat("no answer from rank", silent.size() == 1 ? " " : "s ", join(names, ", "), more, " in ", waited_ms,
                " ms", why.empty() ? "" : ": ", why, "; ", progress, others, "; read rank ", silent[0].rank, "'s log");
}

}  // namespace sfsdp::comm
