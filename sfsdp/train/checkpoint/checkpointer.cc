// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/checkpointer.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"

namespace sfsdp::train::checkpoint {
namespace {

// None for one rank.
std::shared_ptr<comm::Communicator> ranks_of(comm::CommWorld* world) {
  if (!world || world->world_size() == 1) return nullptr;
  return world->all_ranks("checkpoint");
}

// How a rank's work ended, in one letter before its text.
constexpr char kDone = '+', kDamaged = 'd', kUnreadable = 'u', kPassing = 'p', kFailed = '!';

std::string attempt(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const DamagedError& error) {
    return kDamaged + std::string(error.what());
  } catch (const PassingError& error) {
    return kPassing + std::string(error.what());
  } catch (const FileError& error) {
    return kUnreadable + std::string(error.what());
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

// The worst of all ranks' ends: what fails for another reason than the files' would fail with an older checkpoint too.
std::string worst(const std::vector<std::string>& ends) {
  for (const char letter : {kFailed, kDamaged, kUnreadable, kPassing})
    for (size_t r = 0; r < ends.size(); ++r)
      if (ends[r][0] == letter) return ends.size() == 1 ? ends[r] : concat(letter, "rank ", r, ": ", ends[r].substr(1));
  return std::string(1, kDone);
}

[[noreturn]] void fail(const std::string& text, bool may_pass) {
  if (may_pass) throw PassingError(text);
  throw UserError(text);
}

// Whatever the checkpoint has of `kind` has a place in this run: what it has not would be lost with the next save.
void check_all_used(const Manifest& manifest, const std::vector<Piece>& pieces, TensorKind kind,
                    const std::string& path) {
  for (const StoredTensor& t : manifest.tensors)
    if (t.kind == kind && std::ranges::find(pieces, t.name, &Piece::name) == pieces.end())
      throw UserError(concat(path, ": has a tensor ", quote_safe(t.name), ", which this run has not\n  expected ",
                             kind == TensorKind::Optimizer
                                 ? "the same optimizer; without its state: checkpoint.exclude_from_loading = optimizer"
                                 : "a checkpoint of the same model"));
}

}  // namespace

Checkpointer::Checkpointer(CheckpointOptions options, comm::CommWorld* world, std::function<std::vector<Piece>()> state,
                           Say say)
    : options_(std::move(options)),
      ranks_(ranks_of(world)),
      state_(std::move(state)),
      say_(std::move(say)),
      store_(options_.folder),
      source_(options_.frozen.source) {
  if (!options_.enable) return;
  of_first_rank(
      [&] {
        options_.about.launch = options_.launch.id;
        if (options_.load_only) return "";
        const Store::Taken taken = store_.lock(options_.launch, {options_.lock_seconds, say_});
        options_.about.launch = taken.launch;
        for (const std::string& line : taken.notes) say_(line);
        return "";
      },
      "checkpoint lock");
  saver_ = std::make_unique<Saver>(store_, ranks_, options_.keep_latest_k);
}

Checkpointer::~Checkpointer() = default;

// What rank 0 finds, on all ranks; its failure too.
std::string Checkpointer::of_first_rank(const std::function<std::string()>& work, const char* what) {
  const std::string text = gather_texts(ranks_.get(), is_first() ? attempt(work) : std::string(1, kDone), what).front();
  if (text[0] != kDone) fail(text.substr(1), text[0] == kPassing);
  return text.substr(1);
}

// The same on all ranks: a line for each, whose first letters say what is read of it. Notes are rank 0's.
std::vector<Candidate> Checkpointer::candidates() {
  std::vector<Candidate> found;
  const std::string text = of_first_rank(
      [&] {
        Resume resume =
            find_candidates(store_.list(), {store_.folder(), options_.load_step, options_.exclude_from_loading,
                                            options_.about.launch, options_.total_steps});
        for (const std::string& line : resume.skipped) say_(line);
        found = std::move(resume.candidates);
        std::string lines;
        for (const Candidate& c : found)
          lines += concat(c.model_only ? 'm' : 'f', c.keys_hold ? 'k' : '-', c.path, '\n');
        return lines;
      },
      "checkpoints");
  if (is_first()) return found;
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) found.push_back({line.substr(2), line[0] == 'm', line[1] == 'k'});
  return found;
}

//   goes_on: this run continues the one that was saved
Loaded Checkpointer::read(const Candidate& from, bool goes_on) {
  const auto excludes = [&](const char* what) {
    const auto& names = options_.exclude_from_loading;
    return from.keys_hold && std::ranges::find(names, what) != names.end();
  };
  const Manifest manifest = open_checkpoint(from.path);
  digests_.clear();
  elsewhere_.clear();
  source_ = options_.frozen.source;
  RunState run = manifest.run;
  if (goes_on && run.step > 0 && run.seed != options_.seed && !excludes("dataloader"))
    throw UserError(concat(from.path, ": its run had debug.seed = ", run.seed, ", this one has ", options_.seed,
                           "\n  expected the same, which data order and random ops follow; set --debug.seed ", run.seed,
                           ", or checkpoint.exclude_from_loading = dataloader to go on with another"));
  if (!excludes("model")) compare_model(manifest, from.path, goes_on);
  std::vector<Piece> pieces = state_();
  std::erase_if(pieces, [&](const Piece& p) {
    const bool moments = p.kind == TensorKind::Optimizer;
    return moments ? from.model_only || excludes("optimizer") : excludes("model");
  });
  if (pieces.empty() && !goes_on)
    throw UserError(concat("checkpoint.initial_load_path = ", from.path,
                           ": nothing of it would be loaded: initial_load_model_only is true, and exclude_from_loading "
                           "names the model\n  expected one of the two; or leave out initial_load_path"));
  if (!excludes("model"))
    for (const TensorKind kind : {TensorKind::Parameter, TensorKind::Buffer})
      check_all_used(manifest, pieces, kind, from.path);
  if (!from.model_only && !excludes("optimizer")) check_all_used(manifest, pieces, TensorKind::Optimizer, from.path);
  if (excludes("model"))
    checkpoint::load(manifest, from.path, pieces);
  else
    read_model(manifest, from.path, std::move(pieces));
  Loaded loaded{{}, from.path, !excludes("model")};
  if (from.keys_hold) loaded.left_out = options_.exclude_from_loading;
  if (!goes_on) return loaded;
  if (excludes("train_state")) run.step = run.tokens = run.lr_offset = run.skipped = 0;
  if (excludes("lr_scheduler")) run.lr_offset = run.step;
  if (excludes("dataloader")) run.data.clear();
  loaded.run = std::move(run);
  return loaded;
}

// What shapes do not show: heads, rotary bases, the alpha of adapters. Other values make another function of the weights.
void Checkpointer::compare_model(const Manifest& saved, const std::string& path, bool goes_on) const {
  const std::string& own = options_.about.model;
  if (!saved.model.empty() && !own.empty() && saved.model != own) {  // its arguments are others too
    const std::string what = concat(path, " was saved by another model: ", saved.model, ", this run's is ", own);
    if (goes_on) throw UserError(what + "\n  expected model.name and model.flavor of that run, or another folder");
    if (is_first()) say_(what);
    return;
  }
  std::vector<std::string> changes, flags;
  for (const auto& [name, value] : options_.about.model_args) {
    const auto before = saved.model_args.find(name);
    if (before == saved.model_args.end() || before->second == value) continue;
    const std::string key = name.find('.') == std::string::npos ? "model.args." + name : name;
    changes.push_back(concat(key, " = ", value, ", was ", before->second));
    flags.push_back(name == kGraphOfModel ? "--model.path to the archive of that run"
                                          : concat("--", key, " ", before->second));
  }
  if (changes.empty()) return;
  if (goes_on)
    throw UserError(concat(path, " was saved by another model: ", join(changes, "; "), "\n  expected the same; set ",
                           join(flags, " "),
                           ", or begin a run from it with checkpoint.initial_load_path and"
                           " initial_load_model_only"));
  if (is_first()) say_(concat(path, " was saved by another model: ", join(changes, "; ")));
}

// The rate of a step follows the config's schedule, not the saved one; a run that is prolonged may not expect that. Nor may one that
// goes on elsewhere expect other last bits.
void Checkpointer::compare_settings(const RunState& saved) const {
  const auto compare = [&](const auto& now, const auto& then, const char* what) {
    std::vector<std::string> changes;
    for (const auto& [name, value] : now) {
      const auto before = then.find(name);
      if (before != then.end() && before->second != value)
        changes.push_back(concat(name, " = ", value, ", was ", before->second));
    }
    if (!changes.empty()) say_(what + join(changes, "; "));
  };
  compare(options_.schedule, saved.schedule, "the learning rate follows another schedule than before: ");
  compare(options_.kernels, saved.kernels, "other kernels compute than before, so last bits will differ: ");
}

std::optional<Loaded> Checkpointer::load() {
  if (!options_.enable) return load_initial();
  const std::vector<Candidate> found = candidates();
  std::string why;
  bool may_pass = false;
  for (const Candidate& candidate : found) {
    Loaded loaded;
    const std::string end = worst(gather_texts(ranks_.get(), attempt([&] {
                                                 loaded = read(candidate, /*goes_on=*/true);
                                                 return std::string();
                                               }),
                                               "checkpoint load"));
    if (end[0] == kDone) {
      compare_digests(candidate.path);
      if (is_first() && !options_.initial_load_path.empty())
        say_(concat("checkpoint.initial_load_path = ", options_.initial_load_path, " is not read: ", loaded.path,
                    " is there to go on from"));
      if (is_first() && !candidate.note.empty()) say_(candidate.note);
      if (is_first()) compare_settings(loaded.run);
      return loaded;
    }
    why = end.substr(1);
    may_pass |= end[0] == kPassing;
    const bool asked_for = options_.load_step >= 0 && candidate.keys_hold;  // that step, and no other
    if (end[0] == kFailed || asked_for) fail(why, may_pass);
    const std::string aside = of_first_rank(
        [&]() -> std::string {
          if (options_.load_only || end[0] != kDamaged) return candidate.path;
          const std::string name = candidate.path.substr(candidate.path.rfind('-') + 1);
          return store_.set_aside(*parse_int(name));
        },
        "checkpoint set aside");
    if (is_first())
      say_(concat("checkpoint ", candidate.path, " is skipped", aside == candidate.path ? "" : concat(", now ", aside),
                  ": ", why));
  }
  if (!found.empty())
    fail(concat(store_.folder(), ": no checkpoint here can be gone on from. ", why, "\n  ", kBeginAnew), may_pass);
  return load_initial();
}

std::optional<Loaded> Checkpointer::load_initial() {
  if (options_.initial_load_path.empty()) return std::nullopt;
  const std::string path = of_first_rank(
      [&] {
        if (exists(concat(options_.initial_load_path, "/", kManifestFile))) return options_.initial_load_path;
        for (const Listed& listed : Store(options_.initial_load_path).list())
          if (listed.state == Listed::State::Complete) return concat(options_.initial_load_path, "/", listed.name);
        throw UserError(
            concat("checkpoint.initial_load_path = ", options_.initial_load_path,
                   ": no checkpoint there\n  expected a folder step-N that sfsdp has saved, the folder it is "
                   "in, or checkpoint.initial_load_in_hf = true for Hugging Face's"));
      },
      "initial checkpoint");
  Loaded loaded;
  const std::string end = worst(gather_texts(ranks_.get(), attempt([&] {
                                               loaded =
                                                   read({.path = path, .model_only = options_.initial_load_model_only},
                                                        !options_.initial_load_model_only);
                                               return std::string();
                                             }),
                                             "checkpoint load"));
  if (end[0] != kDone) fail(end.substr(1), end[0] == kPassing);
  compare_digests(path);
  return loaded;
}

void Checkpointer::after_step(const RunState& run) {
  if (saver_ && saver_->has_ended()) report(*saver_->wait());
  if (run.step == options_.total_steps && options_.last_save_in_hf) return;
  if (run.step == options_.total_steps)
    save(run, When::Last);
  else if (run.step % options_.interval == 0 || (run.step == 1 && options_.enable_first_step_checkpoint))
    save(run, When::Interval);
}

bool Checkpointer::save(const RunState& run, When when) {
  if (!options_.enable || options_.load_only) return false;
  if (const auto before = saver_->wait()) report(*before);
  if (when == When::Now && run.step == saved_step_) return true;
  SaveRequest request;
  request.about = options_.about;
  request.about.run = run;
  request.about.run.schedule = options_.schedule;
  request.about.run.kernels = options_.kernels;
  request.about.saved_at = std::time(nullptr);
  request.about.model_only = when == When::Last && options_.last_save_model_only;
  request.pieces = state_();
  if (request.about.model_only) {
    std::erase_if(request.pieces, [](const Piece& p) { return p.kind == TensorKind::Optimizer; });
    if (options_.export_dtype != ir::DType::f32) request.dtype = options_.export_dtype;
  }
  say_of_dependents(run.step);
  if (options_.frozen.leave_out && !replaces_source(run.step)) leave_out_frozen(request);
  request.in_background = options_.in_background && when == When::Interval;
  const bool waits = !request.in_background;
  saver_->start(std::move(request));
  if (!waits) return false;
  report(*saver_->wait());
  return run.step == saved_step_;
}

void Checkpointer::report(const SaveResult& result) {
  last_failure_ = result.failure;
  if (result.failure.empty() && !result.model_only) saved_step_ = result.step;
  if (!is_first()) return;
  const double mib = static_cast<double>(result.bytes) / (1 << 20);
  if (!result.failure.empty())
    say_(concat("checkpoint of step ", result.step, " is not saved: ", result.failure));
  else
    say_(concat("Saved ", result.path, ": ", with_commas(mib, 1), " MiB in ", with_commas(result.seconds, 2),
                " s, of which ", with_commas(1e3 * result.stall_seconds, 1), " ms between steps"));
  for (const std::string& warning : result.warnings) say_(warning);
}

void Checkpointer::finish() {
  if (!saver_) return;
  if (const auto result = saver_->wait()) report(*result);
  if (!last_failure_.empty()) throw UserError(concat("the last checkpoint is not saved: ", last_failure_));
}

}  // namespace sfsdp::train::checkpoint
