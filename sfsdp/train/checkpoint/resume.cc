// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/resume.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train::checkpoint {
namespace {

using State = Listed::State;

std::string keys_of(const ResumeRequest& request) {
  std::vector<std::string> keys;
  if (request.load_step >= 0) keys.push_back(concat("checkpoint.load_step = ", request.load_step));
  if (!request.exclude.empty()) keys.push_back("checkpoint.exclude_from_loading = " + join(request.exclude, ", "));
  return join(keys, " and ");
}

// The branch that is left where a run has gone back and not yet come to this step again.
std::string later_save(const std::vector<Listed>& all, const Listed& taken) {
  const Listed* later = nullptr;
  for (const Listed& other : all)
    if (other.state == State::Complete && !other.manifest->model_only && other.step < taken.step &&
        is_older(*(later ? later : &taken)->manifest, *other.manifest))
      later = &other;
  if (!later) return "";
  return concat(taken.name, " is the highest step, but ", later->name, " was saved after it, at ",
                time_text(later->manifest->saved_at), ": checkpoint.load_step = ", later->step, " goes on from that");
}

std::string steps_left(const std::vector<Listed>& all, const Listed& taken) {
  const auto is_later = [&](const Listed& l) { return l.state == State::Complete && l.step > taken.step; };
  const auto count = std::ranges::count_if(all, is_later);
  if (count == 0) return "";
  return concat("checkpoint.load_step = ", taken.step, " goes back from ", std::ranges::find_if(all, is_later)->name,
                ": ", count, count == 1 ? " checkpoint of a later step stays" : " checkpoints of later steps stay",
                " until saves replace them or keep_latest_k removes them");
}

class Chooser {
 public:
  Chooser(const std::vector<Listed>& listed, const ResumeRequest& request) : listed_(listed), request_(request) {}

  Resume run() {
    const bool has_keys = request_.load_step >= 0 || !request_.exclude.empty();
    if (has_keys)
      for (const Listed& one : listed_)
        if (is_own(one)) consider(one, /*keys_hold=*/false);
    for (const Listed& one : listed_) {
      if (has_keys && is_own(one)) continue;
      if (request_.load_step < 0 || one.step == request_.load_step)
        consider(one, /*keys_hold=*/true);
      else if (one.state == State::Damaged)
        say_skipped(one);  // whose it is cannot be read: it may be the launch's own
    }
    if (found_.candidates.empty()) check_none();
    return std::move(found_);
  }

 private:
  bool is_own(const Listed& one) const {
    return one.state == State::Complete && !request_.launch.empty() && one.manifest->launch == request_.launch;
  }

  void consider(const Listed& one, bool keys_hold) {
    const std::string path = request_.folder + "/" + one.name;
    if (one.state == State::Damaged) {
      refused_.push_back(one.why);
      may_pass_ |= one.may_pass;
      say_skipped(one);
    }
    if (one.state == State::SetAside)
      refused_.push_back(concat(path, ": an earlier start has set it aside, as it was not what had been written"));
    if (one.state != State::Complete) return;
    const bool done = found_.candidates.empty() && one.step >= request_.total_steps;  // there is nothing to go on with
    const bool new_moments = keys_hold && std::ranges::find(request_.exclude, "optimizer") != request_.exclude.end();
    if (one.manifest->model_only && !new_moments && one.step > 0 && !done) {
      refused_.push_back(concat(path,
                                ": holds the model alone, as checkpoint.last_save_model_only asked for\n  expected "
                                "one with the optimizer's state; to train on with new moments set "
                                "checkpoint.exclude_from_loading = optimizer"));
      found_.skipped.push_back(concat("checkpoint ", path, " is skipped: it holds the model alone"));
      return;
    }
    found_.candidates.push_back({path, one.manifest->model_only || one.step == 0, keys_hold, note_of(one, keys_hold)});
  }

  void say_skipped(const Listed& one) {
    found_.skipped.push_back(concat("checkpoint ", request_.folder, "/", one.name, " is skipped: ", one.why));
  }

  std::string note_of(const Listed& one, bool keys_hold) const {
    const std::string link = one.link.empty() ? "" : concat(one.name, " is a link to ", quote_safe(one.link));
    const std::string why =
        !keys_hold ? concat(keys_of(request_), " held for an earlier start of this launch: it goes on from ",
                            "what the launch has saved since, ", one.name)
        : request_.load_step >= 0 ? steps_left(listed_, one)
                                  : later_save(listed_, one);
    return link.empty() || why.empty() ? link + why : link + "; " + why;
  }

  void check_none() const {
    const std::string none =
        concat(request_.folder, ": no checkpoint here can be gone on from. ", join(refused_, "\n"), "\n  ", kBeginAnew);
    if (may_pass_) throw PassingError(none);
    if (!refused_.empty()) throw UserError(none);
    if (request_.load_step >= 0)
      throw UserError(concat("checkpoint.load_step = ", request_.load_step, ": ", request_.folder, "/step-",
                             request_.load_step, " is not there\n  expected a step that sfsdp checkpoint ls ",
                             request_.folder, " lists"));
  }

  const std::vector<Listed>& listed_;
  const ResumeRequest& request_;
  Resume found_;
  std::vector<std::string> refused_;
  bool may_pass_ = false;  // a refused one could not be read, and may be at a later try
};

}  // namespace

Resume find_candidates(const std::vector<Listed>& listed, const ResumeRequest& request) {
  return Chooser(listed, request).run();
}

}  // namespace sfsdp::train::checkpoint
