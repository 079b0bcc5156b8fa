// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::comm {
namespace {

const char* to_string(CallKind kind) {
  constexpr std::array kNames = {"all_gather",   "reduce_scatter",   "all_reduce",   "broadcast",
                                 "barrier",      "all_to_all",       "all_to_all_v", "permute",
                                 "all_gather_v", "reduce_scatter_v", "gather_v",     "scatter_v"};  // in enum order
  return kNames.at(static_cast<size_t>(kind));
}

std::string name_of(const CallWords& words) {
  return words.info.name.empty() ? to_string(words.kind) : concat(to_string(words.kind), " ", words.info.name);
}

// The first few of a list that may be long; a hash stands for the rest, so that lists that differ read differently.
std::string listed(const std::vector<std::string>& items) {
  constexpr size_t kMostListed = 8;
  if (items.size() <= kMostListed) return join(items, ", ");
  const std::vector<std::string> first(items.begin(), items.begin() + kMostListed);
  return concat(join(first, ", "), " and ", items.size() - kMostListed, " more (", hex(hash_path(join(items, ","))),
                ")");
}

bool is_in_parts(CallKind kind) {
  return kind == CallKind::AllGatherV || kind == CallKind::ReduceScatterV || kind == CallKind::GatherV ||
         kind == CallKind::ScatterV;
}

void check_root(const char* kind, int root, int size, const CallInfo& info) {
  SFSDP_CHECK(root >= 0 && root < size, kind, " ", info.name, ": root ", root, " of ", size);
}

ByteChunks chunks_of(const char* kind, std::span<const int64_t> counts, int size, const CallInfo& info) {
  SFSDP_CHECK(std::ssize(counts) == size, kind, " ", info.name, ": ", counts.size(), " counts for ", size, " ranks");
  int64_t sum = 0;
  for (const int64_t count : counts) {
    SFSDP_CHECK(count >= 0 && count <= INT64_MAX - sum, kind, " ", info.name, ": a count of ", count, " bytes");
    sum += count;
  }
  return ByteChunks(counts);
}

ByteChunks equal_chunks(size_t chunk, int size) { return {chunk * static_cast<size_t>(size), 1, size}; }

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

Call::Call(CallWords words) : words_(std::move(words)) {
  if (words_.kind == CallKind::Permute) {
    to_.assign(static_cast<size_t>(words_.size), -1);
    from_ = to_;
    for (const RankPair& pair : words_.pairs) {
      to_[static_cast<size_t>(pair.from)] = pair.to;
      from_[static_cast<size_t>(pair.to)] = pair.from;
    }
  }
  bytes_ = static_cast<int64_t>(std::max(words_.sent.bytes(), words_.received.bytes()));
  text_ = make_text();
  hash_ = hash_path(text_);
}

std::string Call::make_text() const {
  std::string text = name_of(words_);
  if (words_.kind == CallKind::Barrier || words_.kind == CallKind::AllToAllV) return text;
  text += concat(" of ", bytes_, " bytes");
  if (words_.dtype) text += concat(", ", ir::to_string(*words_.dtype), " ", ir::to_string(words_.op));
  if (words_.kind == CallKind::GatherV) text += concat(" to group rank ", words_.root);
  if (words_.kind == CallKind::Broadcast || words_.kind == CallKind::ScatterV)
    text += concat(" from group rank ", words_.root);
  std::vector<std::string> items;
  for (const RankPair& pair : words_.pairs) items.push_back(concat(pair.from, " to ", pair.to));
  if (words_.kind == CallKind::Permute) text += ", " + (items.empty() ? "no pair" : listed(items));
  if (is_in_parts(words_.kind)) {
    for (int r = 0; r < words_.size; ++r) items.push_back(std::to_string(words_.sent.size(r)));
    text += ", in parts of " + listed(items);
  }
  return text;
}

size_t Call::in_bytes(int rank) const {
  switch (words_.kind) {
    case CallKind::AllGather:
    case CallKind::AllGatherV:
    case CallKind::GatherV: return words_.sent.size(rank);
    case CallKind::ScatterV: return rank == words_.root ? words_.sent.bytes() : 0;
    default: return words_.sent.bytes();
  }
}

size_t Call::out_bytes(int rank) const {
  switch (words_.kind) {
    case CallKind::ReduceScatter:
    case CallKind::ReduceScatterV:
    case CallKind::ScatterV: return words_.sent.size(rank);
    case CallKind::GatherV: return rank == words_.root ? words_.sent.bytes() : 0;
    case CallKind::AllToAllV: return words_.received.bytes();
    default: return words_.sent.bytes();
  }
}

void Call::check(int rank, int size, std::span<const std::byte> in, std::span<const std::byte> out) const {
  const CallWords& w = words_;
  SFSDP_CHECK(w.size == 0 || w.size == size, text_, ": described for ", w.size, " ranks, made by a group of ", size);
  SFSDP_CHECK(in.size() == in_bytes(rank) && out.size() == out_bytes(rank), text_, ": ", in.size(), " bytes into ",
              out.size(), ", expected ", in_bytes(rank), " into ", out_bytes(rank));
  if (w.kind == CallKind::AllReduce || w.kind == CallKind::Broadcast) {
    SFSDP_CHECK(in.data() == out.data(), text_, ": is in place, its input is its output");
    return;
  }
  if (w.kind == CallKind::AllToAllV && size == 1)  // of several ranks all compare all counts
    SFSDP_CHECK(w.sent.size(rank) == w.received.size(rank), text_, ": ", w.sent.size(rank), " bytes to itself, ",
                w.received.size(rank), " from itself");
  SFSDP_CHECK(!overlap(in, out) || lies_in_place(rank, in, out), text_, ": input and output overlap",
              moves_one_part() ? ", and the smaller is not the rank's own part of the larger" : "");
}

bool Call::moves_one_part() const {
  const CallKind kind = words_.kind;
  return kind == CallKind::AllGather || kind == CallKind::ReduceScatter || is_in_parts(kind);
}

bool Call::lies_in_place(int rank, std::span<const std::byte> in, std::span<const std::byte> out) const {
  if (!moves_one_part()) return false;
  const Range own = words_.sent.at(rank);
  const std::byte* part = (in.size() <= out.size() ? out : in).data() + own.begin;
  return own.bytes == std::min(in.size(), out.size()) && part == (in.size() <= out.size() ? in : out).data();
}

Range Call::sent(int from, int to) const {
  const Range whole = {0, words_.sent.bytes()};
  switch (words_.kind) {
    case CallKind::AllGather:
    case CallKind::AllGatherV: return {0, words_.sent.size(from)};
    case CallKind::AllToAll:
    case CallKind::AllToAllV: return words_.sent.at(to);
    case CallKind::Broadcast: return from == words_.root ? whole : Range{};
    case CallKind::Permute: return to_[static_cast<size_t>(from)] == to ? whole : Range{};
    case CallKind::GatherV: return to == words_.root ? Range{0, words_.sent.size(from)} : Range{};
    case CallKind::ScatterV: return from == words_.root ? words_.sent.at(to) : Range{};
    default: return {};
  }
}

Range Call::received(int from, int to) const {
  switch (words_.kind) {
    case CallKind::AllGather:
    case CallKind::AllGatherV:
    case CallKind::AllToAll: return words_.sent.at(from);
    case CallKind::AllToAllV: return words_.received.at(from);
    case CallKind::GatherV: return to == words_.root ? words_.sent.at(from) : Range{};
    default: return {0, sent(from, to).bytes};
  }
}

bool Call::is_read(int rank) const {
  if (words_.kind == CallKind::Broadcast || words_.kind == CallKind::ScatterV) return rank == words_.root;
  return words_.kind != CallKind::Permute || to_[static_cast<size_t>(rank)] >= 0;
}

std::vector<int64_t> Call::counts(int size) const {
  std::vector<int64_t> row;
  for (const ByteChunks* chunks : {&words_.sent, &words_.received})
    for (int r = 0; r < size; ++r) row.push_back(static_cast<int64_t>(chunks->size(r)));
  return row;
}

Call all_gather_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info) {
  SFSDP_CHECK(out_bytes == in_bytes * static_cast<size_t>(size), "all_gather ", info.name, ": ", size, " x ", in_bytes,
              " bytes into ", out_bytes);
  return Call({.kind = CallKind::AllGather, .size = size, .sent = equal_chunks(in_bytes, size), .info = info});
}

Call reduce_scatter_call(size_t in_bytes, size_t out_bytes, int size, ir::DType dtype, ReduceOp op,
                         const CallInfo& info) {
  SFSDP_CHECK(in_bytes == out_bytes * static_cast<size_t>(size), "reduce_scatter ", info.name, ": ", in_bytes,
              " bytes into ", size, " x ", out_bytes);
  check_reducible(out_bytes, dtype);
  return Call({.kind = CallKind::ReduceScatter,
               .size = size,
               .sent = equal_chunks(out_bytes, size),
               .dtype = dtype,
               .op = op,
               .info = info});
}

Call all_reduce_call(size_t bytes, ir::DType dtype, ReduceOp op, const CallInfo& info) {
  check_reducible(bytes, dtype);
  return Call({.kind = CallKind::AllReduce, .sent = {bytes, 1, 1}, .dtype = dtype, .op = op, .info = info});
}

Call broadcast_call(size_t bytes, int root, int size, const CallInfo& info) {
  check_root("broadcast", root, size, info);
  return Call({.kind = CallKind::Broadcast, .size = size, .sent = {bytes, 1, 1}, .root = root, .info = info});
}

Call barrier_call(const CallInfo& info) { return Call({.kind = CallKind::Barrier, .info = info}); }

Call all_to_all_call(size_t in_bytes, size_t out_bytes, int size, const CallInfo& info) {
  SFSDP_CHECK(in_bytes == out_bytes && in_bytes % static_cast<size_t>(size) == 0, "all_to_all ", info.name, ": ",
              in_bytes, " bytes into ", out_bytes, " among ", size, " ranks");
  return Call({.kind = CallKind::AllToAll,
               .size = size,
               .sent = equal_chunks(in_bytes / static_cast<size_t>(size), size),
               .info = info});
}

Call all_to_all_v_call(std::span<const int64_t> to, std::span<const int64_t> from, int size, const CallInfo& info) {
  return Call({.kind = CallKind::AllToAllV,
               .size = size,
               .sent = chunks_of("all_to_all_v", to, size, info),
               .received = chunks_of("all_to_all_v", from, size, info),
               .info = info});
}

Call permute_call(size_t bytes, std::span<const RankPair> pairs, int size, const CallInfo& info) {
  std::vector<bool> sends(static_cast<size_t>(size)), receives(static_cast<size_t>(size));
  for (const RankPair& pair : pairs) {
    const auto check = [&](int rank, std::vector<bool>& seen, const char* what) {
      SFSDP_CHECK(rank >= 0 && rank < size, "permute ", info.name, ": rank ", rank, " of ", size);
      SFSDP_CHECK(!seen[static_cast<size_t>(rank)], "permute ", info.name, ": rank ", rank, what, " twice");
      seen[static_cast<size_t>(rank)] = true;
    };
    check(pair.from, sends, " sends");
    check(pair.to, receives, " receives");
  }
  return Call({.kind = CallKind::Permute,
               .size = size,
               .sent = {bytes, 1, 1},
               .pairs = {pairs.begin(), pairs.end()},
               .info = info});
}

Call all_gather_v_call(std::span<const int64_t> counts, int size, const CallInfo& info) {
  return Call({.kind = CallKind::AllGatherV,
               .size = size,
               .sent = chunks_of("all_gather_v", counts, size, info),
               .info = info});
}

Call reduce_scatter_v_call(std::span<const int64_t> counts, int size, ir::DType dtype, ReduceOp op,
                           const CallInfo& info) {
  ByteChunks chunks = chunks_of("reduce_scatter_v", counts, size, info);
  for (const int64_t count : counts) check_reducible(static_cast<size_t>(count), dtype);
  return Call({.kind = CallKind::ReduceScatterV,
               .size = size,
               .sent = std::move(chunks),
               .dtype = dtype,
               .op = op,
               .info = info});
}

Call gather_v_call(std::span<const int64_t> counts, int root, int size, const CallInfo& info) {
  check_root("gather_v", root, size, info);
  return Call({.kind = CallKind::GatherV,
               .size = size,
               .sent = chunks_of("gather_v", counts, size, info),
               .root = root,
               .info = info});
}

Call scatter_v_call(std::span<const int64_t> counts, int root, int size, const CallInfo& info) {
  check_root("scatter_v", root, size, info);
  return Call({.kind = CallKind::ScatterV,
               .size = size,
               .sent = chunks_of("scatter_v", counts, size, info),
               .root = root,
               .info = info});
}

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

std::string error_text(const CallSite& site, const Call& call, uint64_t sequence, const std::string& cause) {
  const CallInfo& info = call.info();
  return concat("CommError on rank ", site.global_rank(), " of ", site.world_size, ": ", to_string(call.kind()),
                info.name.empty() ? "" : " ", info.name, " over ", site.group, ", sequence ", sequence, ", ",
                call.bytes(), " bytes", info.module_path.empty() ? "" : " at ", info.module_path, "\n  ", cause);
}

std::string disagreement_text(int first_rank, const std::string& first, int rank, const std::string& call) {
  return concat("ranks disagree: rank ", first_rank, " calls ", first, ", rank ", rank, " calls ", call,
                "; every rank must run the same program: compare their command lines and config files");
}

std::string counts_disagreement(const CallSite& site, std::span<const std::span<const int64_t>> rows) {
  const size_t n = rows.size();
  for (size_t from = 0; from < n; ++from)
    for (size_t to = 0; to < n; ++to) {
      const int64_t sent = rows[from][to], expected = rows[to][n + from];
      if (sent == expected) continue;
      return concat("ranks disagree: rank ", site.ranks[from], " sends ", sent, " bytes to rank ", site.ranks[to],
                    ", which expects ", expected,
                    " from it; a count to send on one rank is the count to receive on the other");
    }
  return "";
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
