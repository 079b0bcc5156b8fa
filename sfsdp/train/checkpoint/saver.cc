// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/saver.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/work_beside.h"
#include "sfsdp/train/checkpoint/shard_file.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What a rank tells the others of its part: a fragment, or why there is none.
constexpr char kWorked = '+', kDidNot = '!';

// The first failure that is a cause; ranks that were told to stop come last. "" if there is none.
std::string first_failure(const std::vector<std::string>& texts) {
  for (size_t r = 0; r < texts.size(); ++r)
    if (!texts[r].empty() && texts[r][0] == kDidNot)
      return texts.size() == 1 ? texts[r].substr(1) : concat("rank ", r, ": ", texts[r].substr(1));
  return "";
}

template <class Work>
std::string report_of(const Work& work) {
  try {
    return kWorked + work();
  } catch (const std::exception& error) {
    return kDidNot + std::string(error.what());
  }
}

}  // namespace

std::vector<std::string> gather_texts(comm::Communicator* ranks, const std::string& mine, const char* what) {
  if (!ranks) return {mine};
  const auto size = static_cast<size_t>(ranks->size());
  const uint64_t length = mine.size();
  std::vector<uint64_t> lengths(size);
  ranks->all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)), {what, ""});
  const size_t longest = *std::ranges::max_element(lengths);
  std::vector<std::string> texts(size);
  if (longest == 0) return texts;
  std::string padded = mine, all(size * longest, '\0');
  padded.resize(longest);
  ranks->all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)), {what, ""});
  for (size_t r = 0; r < size; ++r) texts[r] = all.substr(r * longest, lengths[r]);
  return texts;
}

Saver::~Saver() {
  if (thread_.joinable()) thread_.join();
}

void Saver::start(SaveRequest request) {
  SFSDP_CHECK(!result_, "a save is in flight");
  const auto begin = Clock::now();
  request.pieces = share_out(request.pieces);
  image_ = {};
  if (request.in_background || request.dtype) stage(request);
  ended_ = false;
  result_.emplace();
  result_->step = request.about.run.step;
  result_->model_only = request.about.model_only;
  result_->path = store_.path_of(result_->step);
  result_->stall_seconds = seconds_since(begin);
  if (!request.in_background) {
    run(request);
    result_->stall_seconds = result_->seconds;
    return;
  }
  thread_ = std::thread([this, held = std::move(request)] {
    // the step's own threads go first: a save has until the next one
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);
    run(held);
  });
}

// Memory of `bytes` in huge pages, as far as the system has any: the disk takes it page by page, at a cost for each.
void Saver::reserve(size_t bytes) {
  if (bytes <= staging_bytes_) return;
  constexpr size_t kHuge = size_t{2} << 20;
  staging_bytes_ = 0;
  staging_.reset();  // before the new one is there: never two
  staging_.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, (bytes + kHuge - 1) / kHuge * kHuge)));
  if (!staging_) throw std::bad_alloc();
  ::madvise(staging_.get(), bytes / kHuge * kHuge, MADV_HUGEPAGE);
  staging_bytes_ = bytes;
}

// Copies what this rank writes into one buffer, as its file will be.
void Saver::stage(SaveRequest& request) {
  const auto dtype_of = [&](const Piece& p) {
    const bool convert = request.dtype && p.kind == TensorKind::Parameter && ir::is_floating(p.dtype);
    return convert ? *request.dtype : p.dtype;
  };
  std::vector<Piece> pieces = request.pieces;
  size_t bytes = 0;
  for (Piece& p : pieces) {
    p.dtype = dtype_of(p);
    bytes += p.bytes().size();
  }
  const std::string header = shard_header(pieces);
  bytes += header.size();
  reserve(bytes);
  image_ = {staging_.get(), bytes};
  std::byte* to = std::ranges::copy(std::as_bytes(std::span(header)), staging_.get()).out;
  int64_t lost = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& p = request.pieces[i];
    Piece& staged = pieces[i];
    staged.data = to;
    if (staged.dtype != p.dtype)
      lost += convert_floats(p.bytes(), p.dtype, staged.bytes(), staged.dtype);
    else if (p.begin < p.end)
      std::memcpy(to, p.data, p.bytes().size());
    to += staged.bytes().size();
  }
  request.pieces = std::move(pieces);
  if (lost > 0)
    request.failure = concat(lost, " numbers are too large for ", ir::to_string(*request.dtype),
                             "\n  expected checkpoint.export_dtype = bfloat16 or float32");
}

void Saver::run(const SaveRequest& request) {
  const auto begin = Clock::now();
  try {
    write(request);
  } catch (const std::exception& error) {
    result_->failure = error.what();
  }
  result_->seconds = seconds_since(begin);
  ended_.store(true, std::memory_order_release);
}

// Three rounds, after each of which all ranks know of any failure: the folder is there; all files are written and synced;
// the checkpoint is visible and synced.
void Saver::write(const SaveRequest& request) {
  const int64_t step = request.about.run.step;
  const auto agree = [&](const std::string& mine, const char* what) {
    std::vector<std::string> texts = gather_texts(ranks_.get(), mine, what);
    result_->failure = first_failure(texts);
    return texts;
  };
  const auto on_first = [&](const auto& work) {
    return rank() == 0 ? report_of([&] {
      work();
      return std::string();
    })
                       : std::string(1, kWorked);
  };
  agree(on_first([&] { result_->warnings = store_.begin(step); }), "checkpoint folder");
  if (!result_->failure.empty()) return;

  const auto write_mine = [&] {
    if (!request.failure.empty()) throw UserError(request.failure);
    Manifest fragment = request.about;
    write_shard(store_.temporary_path_of(step), shard_name(rank()), request.pieces, fragment, {}, image_);
    fragment.tensors.insert(fragment.tensors.end(), request.left_out.begin(), request.left_out.end());
    return print(fragment);
  };
  std::string mine;
  if (ranks_)
    comm::work_beside(
        *ranks_, [&] { mine = report_of(write_mine); }, "checkpoint progress");
  else
    mine = report_of(write_mine);
  const std::vector<std::string> fragments = agree(mine, "checkpoint file");
  if (!result_->failure.empty()) {
    if (rank() == 0) store_.give_up(step);
    return;
  }
  agree(on_first([&] {
          std::vector<Manifest> parsed;
          for (const std::string& text : fragments)
            parsed.push_back(parse_fragment(std::string_view(text).substr(1), "what a rank wrote"));
          Manifest manifest = merge(parsed);
          result_->bytes = manifest.bytes();
          if (std::string note = store_.publish(std::move(manifest)); !note.empty())
            result_->warnings.push_back(std::move(note));
        }),
        "checkpoint manifest");
  if (!result_->failure.empty() || rank() != 0) return;
  if (request.about.run.skipped > 0) return;  // what was before the first skipped step may be what to go back to
  std::vector<std::string>& warnings = result_->warnings;
  try {
    for (const std::string& why : store_.purge(keep_, step))
      warnings.push_back("an older checkpoint could not be removed: " + why);
  } catch (const std::exception& error) {
    warnings.push_back(concat("an older checkpoint could not be removed: ", error.what()));
  }
}

std::optional<SaveResult> Saver::wait() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(result_, std::nullopt);
}

}  // namespace sfsdp::train::checkpoint
