// SPDX-License-Identifier: BSD-3-Clause
// Frozen weights that checkpoints leave out: what a save says of them, and how a start reads them again.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/checkpoint/checkpointer.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"

namespace sfsdp::train::checkpoint {
namespace {

// Adds this rank's part of each tensor's digest: ranks that hold the same elements digest a share each, as they write it.
void add_digests(const std::vector<Piece>& pieces, std::map<std::string, uint64_t>& digests) {
  for (const Piece& p : pieces) digests[p.name] = 0;
  for (const Piece& p : share_out(pieces)) digests[p.name] += digest_of(p);
}

// A checkpoint of `folder` by its name there, so that the folder may be moved.
WeightSource source_beside(const WeightSource& source, const std::string& folder) {
  if (source.kind != WeightSource::Kind::Checkpoint) return source;
  std::error_code error;
  std::filesystem::path path(source.path);
  if (!path.has_filename()) path = path.parent_path();
  if (!std::filesystem::equivalent(path.parent_path(), folder, error) || error) return source;
  return {source.kind, path.filename().string()};
}

}  // namespace

// Fills the model's pieces: what the checkpoint leaves out from where it is, then what it holds, as the first may fill all.
void Checkpointer::read_model(const Manifest& manifest, const std::string& path, std::vector<Piece> pieces) {
  const std::vector<Piece> elsewhere = take_left_out(manifest, pieces, path);
  if (!elsewhere.empty()) read_elsewhere(manifest, path, elsewhere, 0);
  checkpoint::load(manifest, path, pieces);
  add_digests(elsewhere, digests_);
  for (const Piece& p : elsewhere) elsewhere_.push_back(*manifest.find(p.name));
  elsewhere_source_ = as_given(resolved(manifest.source, path));
  const bool holds_some = std::ranges::any_of(pieces, &Piece::frozen);
  const WeightSource here = resolved({WeightSource::Kind::Checkpoint, path}, path);
  source_ = elsewhere.empty() || holds_some ? here : elsewhere_source_;
}

// The archive or folder that this run is given, which may have moved since a checkpoint named it.
WeightSource Checkpointer::as_given(const WeightSource& named) const {
  const WeightSource& given = options_.frozen.source;
  return named.kind == given.kind ? given : named;
}

// A save under the name of the checkpoint that the frozen weights are read from would replace the only one that holds them.
// By names alone: each rank must say the same.
bool Checkpointer::replaces_source(int64_t step) const {
  const std::string path = store_.path_of(step);
  return source_ == resolved({WeightSource::Kind::Checkpoint, path}, path);
}

// A run that went back with load_step saves steps again; others of the branch that it left may need what stood there.
void Checkpointer::say_of_dependents(int64_t step) const {
  const std::string path = store_.path_of(step);
  if (!is_first() || !exists(path) || replaces_source(step)) return;
  const WeightSource replaced = resolved({WeightSource::Kind::Checkpoint, path}, path);
  std::vector<std::string> names;
  for (const Listed& other : store_.list())
    if (other.manifest && other.step != step && !other.manifest->left_out().empty() &&
        resolved(other.manifest->source, store_.path_of(other.step)) == replaced)
      names.push_back(other.name);
  if (names.empty()) return;
  say_(concat("step-", step, " is saved again, and ", join(names, ", "),
              names.size() == 1 ? " takes its" : " take their",
              " frozen weights from the one that was there: no run can go on from ", names.size() == 1 ? "it" : "them",
              " if they were other weights; delete ", names.size() == 1 ? "it" : "them", ", or name a step with",
              " checkpoint.load_step"));
}

void Checkpointer::read_elsewhere(const Manifest& manifest, const std::string& path, std::vector<Piece> pieces,
                                  int depth) {
  const WeightSource source = as_given(resolved(manifest.source, path));
  if (depth > kMostSources) throw UserError(concat(path, ": ", kCircle));
  try {
    if (source.kind != WeightSource::Kind::Checkpoint) {
      SFSDP_CHECK(options_.frozen.read, path, " leaves out frozen weights, and this run reads none");
      return options_.frozen.read(source);
    }
    const Manifest there = open_checkpoint(source.path);
    const std::vector<Piece> further = take_left_out(there, pieces, source.path);
    if (!further.empty()) read_elsewhere(there, source.path, further, depth + 1);
    checkpoint::load(there, source.path, pieces);
  } catch (const PassingError&) {
    throw;
  } catch (const UserError& error) {  // nothing is wrong with the checkpoint itself
    if (depth > 0) throw;             // said once, of the one that the run goes on from
    throw UserError(concat(path, " leaves out frozen weights, which are of ", to_string(source), ", but ", error.what(),
                           "\n  ", cure_of_change(source)));
  }
}

// A collective call, after all ranks have read.
void Checkpointer::compare_digests(const std::string& path) {
  if (elsewhere_.empty()) return;
  const size_t digits = hex(uint64_t{0}).size();
  std::string mine;
  for (const StoredTensor& t : elsewhere_) mine += hex(digests_.at(t.name));
  const std::vector<std::string> all = gather_texts(ranks_.get(), mine, "digests of frozen weights");
  std::vector<std::pair<size_t, uint64_t>> wrong;  // its place, what it is
  for (size_t i = 0; i < elsewhere_.size(); ++i) {
    uint64_t sum = 0;
    for (const std::string& text : all) sum += *parse_hash(std::string_view(text).substr(i * digits, digits));
    if (sum != elsewhere_[i].digest) wrong.emplace_back(i, sum);
  }
  if (wrong.empty()) return;
  const auto [place, got] = wrong.front();
  throw UserError(has_changed(elsewhere_source_, elsewhere_[place], got, wrong.size() - 1, path));
}

// Takes frozen parameters out of what is saved, with this rank's part of their digests.
void Checkpointer::leave_out_frozen(SaveRequest& request) {
  std::vector<Piece> fresh;
  int64_t bytes = 0;
  for (const Piece& p : request.pieces) {
    if (!p.frozen) continue;
    bytes += p.numel() * ir::size_in_bytes(p.dtype);
    if (!digests_.contains(p.name)) fresh.push_back(p);
  }
  add_digests(fresh, digests_);
  std::erase_if(request.pieces, [&](const Piece& p) {
    if (p.frozen) request.left_out.push_back({p.name, p.kind, p.dtype, p.shape, p.rank, {}, digests_.at(p.name)});
    return p.frozen;
  });
  request.about.source = source_beside(source_, store_.folder());
  if (said_ || !is_first()) return;
  said_ = true;
  if (request.left_out.empty())
    say_("checkpoint.frozen = none changes nothing: no parameter is frozen");
  else
    say_(concat("Checkpoints leave out ", request.left_out.size(), " frozen tensors, ",
                with_commas(static_cast<double>(bytes) / (1 << 20), 1), " MiB: a run that goes on reads them from ",
                to_string(source_)));
}

}  // namespace sfsdp::train::checkpoint
