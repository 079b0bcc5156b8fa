// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/checkpoint/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/passing_error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train::checkpoint {

std::string time_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  char text[32] = "?";
  std::tm parts{};
  if (::gmtime_r(&time, &parts)) std::strftime(text, sizeof(text), "%F %T UTC", &parts);  // a year beyond int: "?"
  return text;
}

namespace {

constexpr std::string_view kUnfinished = ".tmp", kReplaced = ".replaced", kDeleted = ".deleted", kDamaged = ".damaged",
                           kLeftover = ".leftover";
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// "step-20" and what follows the number; -1 for another name.
std::pair<int64_t, std::string> parse_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return {-1, ""};
  const size_t end = std::min(name.find('.'), name.size());
  const std::string digits = name.substr(kPrefix.size(), end - kPrefix.size());
  const auto step = parse_int(digits);
  if (!step || *step < 0 || std::to_string(*step) != digits) return {-1, ""};
  return {*step, name.substr(end)};
}

// As free_name makes them: the ending, or with a number after it.
bool is_ending(const std::string& ending, std::string_view base) {
  return ending == base || ending.starts_with(concat(base, "-"));
}

// A file that a save writes into its folder.
bool is_ours(const std::string& name) {
  return name == kManifestFile || (name.starts_with("rank-") && name.ends_with(".safetensors"));
}

std::string remove_checkpoint(const std::string& path) { return remove_folder(path, is_ours); }

std::string this_process() {
  char host[256] = "?";
  ::gethostname(host, sizeof(host) - 1);
  return concat("host ", host, ", process ", ::getpid(), ", since ", time_text(std::time(nullptr)));
}

// An id for a launch whose launcher gives none: no other start has it.
std::string own_launch() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  return concat(this_process(), " and ", now.tv_nsec, " ns");
}

constexpr std::string_view kLaunch = "launch ";

std::string start_of(int fd) {
  std::string text(4096, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// The launch of the run that had the lock before; "" if it left none.
std::string launch_in(int fd) {
  for (const std::string& line : split(start_of(fd), '\n'))
    if (line.starts_with(kLaunch)) return line.substr(kLaunch.size());
  return "";
}

std::string read_manifest(const std::string& file) {
  int64_t bytes = 0;
  const Fd handle = open_file(file, &bytes);
  if (bytes > kMaxManifestBytes)
    throw DamagedError(concat(file, ": ", bytes, " bytes\n  expected at most ", kMaxManifestBytes));
  std::string text(static_cast<size_t>(bytes), '\0');
  read_all(handle.get(), 0, std::as_writable_bytes(std::span(text)), file);
  return text;
}

std::string mib_text(int64_t bytes) { return with_commas(static_cast<double>(bytes) / (1 << 20), 1) + " MiB"; }

}  // namespace

Manifest open_checkpoint(const std::string& path) {
  const std::string file = concat(path, "/", kManifestFile);
  if (!exists(file))
    throw DamagedError(
        concat(path, ": no ", kManifestFile, "\n  expected a checkpoint of sfsdp, with this file in it"));
  Manifest manifest = parse_manifest(read_manifest(file), file);
  std::map<std::string, int64_t> sizes;
  for (const FolderEntry& entry : list_folder(path))
    if (!entry.is_folder) sizes[entry.name] = entry.bytes;
  for (const StoredFile& f : manifest.files) {
    const auto found = sizes.find(f.name);
    if (found == sizes.end())
      throw DamagedError(concat(path, "/", f.name, ": is not there\n  expected it, as ", kManifestFile, " lists it"));
    if (found->second != f.bytes)
      throw DamagedError(concat(path, "/", f.name, ": ", found->second, " bytes\n  expected ", f.bytes, ", as ",
                                kManifestFile, " has it"));
  }
  const std::string name = std::filesystem::path(path + "/").lexically_normal().parent_path().filename();
  if (const auto [step, ending] = parse_name(name); step >= 0 && ending.empty() && step != manifest.run.step)
    throw DamagedError(concat(path, ": holds step ", manifest.run.step, "\n  expected the step of its name"));
  return manifest;
}

std::string Store::path_of(int64_t step) const { return concat(folder_, "/step-", step); }
std::string Store::temporary_path_of(int64_t step) const { return concat(path_of(step), kUnfinished); }

// Takes the lock, waiting up to `wait.seconds` for who holds it.
void Store::wait_for_lock(int fd, const std::string& path, const LockWait& wait) const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(wait.seconds);
  for (bool said = false; ::flock(fd, LOCK_EX | LOCK_NB) != 0; said = true) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) fail(path, "cannot be locked", errno);
    const std::string other = concat(
        folder_, ": another run writes its checkpoints here: ", quote_safe(trim(split(start_of(fd), '\n').front())));
    if (Clock::now() >= end)
      throw PassingError(
          concat(other, "\n  expected a folder for each run; end the other one, or set checkpoint.folder"));
    if (!said && wait.say) wait.say(concat(other, "; waits up to ", wait.seconds, " s for its end"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Store::Taken Store::lock(const Launch& launch, const LockWait& wait) {
  make_folders(folder_);
  const std::string path = folder_ + "/lock";
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file.get() < 0) fail(path, "cannot be opened", errno);
  wait_for_lock(file.get(), path, wait);
  Taken taken{launch.id, {}};
  const std::string before = launch.restarted ? launch_in(file.get()) : "";
  if (taken.launch.empty()) taken.launch = before.empty() ? own_launch() : before;
  const std::string text = concat(this_process(), "\n", kLaunch, taken.launch, "\n");
  if (::ftruncate(file.get(), 0) != 0) fail(path, "cannot be written", errno);
  write_all(file.get(), std::as_bytes(std::span(text)), path);
  lock_ = std::move(file);
  taken.notes = set_aside_leftovers();
  int64_t bytes = 0, count = 0;
  for (const FolderEntry& entry : list_folder(folder_))
    if (const auto [step, ending] = parse_name(entry.name);
        (entry.is_folder || entry.is_link) && step >= 0 && is_ending(ending, kLeftover))
      bytes += bytes_in(entry.name), ++count;
  if (count > 0)
    taken.notes.push_back(concat(folder_, ": ", count, count == 1 ? " leftover" : " leftovers",
                                 " of saves that crashes cut short, ", mib_text(bytes), ": remove step-*", kLeftover,
                                 "* by hand once nobody needs them"));
  return taken;
}

std::vector<Listed> Store::list() const {
  std::vector<Listed> found;
  if (!exists(folder_)) return found;
  for (const FolderEntry& entry : list_folder(folder_)) {
    Listed listed;
    listed.name = entry.name;
    const auto [step, ending] = parse_name(entry.name);
    using State = Listed::State;
    if (entry.is_link) listed.link = link_target(folder_ + "/" + entry.name);
    if ((entry.is_folder || entry.is_link) && step >= 0) {
      listed.step = step;
      listed.state = ending.empty()                 ? State::Complete
                     : ending == kUnfinished        ? State::Unfinished
                     : ending == kReplaced          ? State::Unfinished
                     : is_ending(ending, kDeleted)  ? State::Deleted
                     : is_ending(ending, kDamaged)  ? State::SetAside
                     : is_ending(ending, kLeftover) ? State::Leftover
                                                    : State::Foreign;
    }
    if (listed.state == State::Complete) {
      try {
        listed.manifest = open_checkpoint(folder_ + "/" + entry.name);
      } catch (const UserError& error) {
        listed.manifest.reset();
        listed.state = State::Damaged;
        listed.why = error.what();
        listed.may_pass = dynamic_cast<const PassingError*>(&error) != nullptr;
      }
    }
    if (entry.name != "lock") found.push_back(std::move(listed));
  }
  std::ranges::stable_sort(found, std::greater<>(), &Listed::step);
  return found;
}

std::string Store::free_name(int64_t step, const std::string& ending) const {
  std::string name = path_of(step) + ending;
  for (int i = 2; exists(name); ++i) name = concat(path_of(step), ending, "-", i);
  return name;
}

int64_t Store::bytes_in(const std::string& name) const {
  int64_t bytes = 0;
  try {
    for (const FolderEntry& entry : list_folder(folder_ + "/" + name)) bytes += entry.bytes;
  } catch (const UserError&) {
    return 0;  // no folder
  }
  return bytes;
}

// What this run's predecessors were writing, replacing or removing when they ended: nobody else does here, as we hold the
// lock. A replaced or retired one, whose name a newer save has or nobody needs, goes; what lost its name in a crash gets
// it back; what never had one is kept under another.
std::vector<std::string> Store::set_aside_leftovers() {
  std::vector<std::string> notes;
  for (const FolderEntry& entry : list_folder(folder_)) {
    const auto [step, ending] = parse_name(entry.name);
    const std::string path = folder_ + "/" + entry.name;
    if (step < 0) continue;
    if (ending == kUnfinished) {
      const std::string aside = free_name(step, std::string(kLeftover));
      rename_path(path, aside);
      notes.push_back(concat("checkpoint ", path, " is what a crash left of a save: now ", aside));
    } else if (ending == kReplaced && entry.is_folder && !exists(path_of(step))) {
      rename_path(path, path_of(step));
    } else if ((ending == kReplaced || is_ending(ending, kDeleted)) && (entry.is_folder || entry.is_link)) {
      if (const std::string why = remove_checkpoint(path); !why.empty())
        notes.push_back("an older checkpoint could not be removed: " + why);
    }
  }
  return notes;
}

std::vector<std::string> Store::begin(int64_t step) {
  std::vector<std::string> notes = set_aside_leftovers();
  const std::string path = temporary_path_of(step);
  if (::mkdir(path.c_str(), 0755) != 0) fail(path, "cannot be made", errno);
  return notes;
}

// Later than all that is here, whatever the clock says now or said then.
int64_t Store::next_save() {
  if (last_save_ < 0) {
    last_save_ = 0;
    for (const Listed& listed : list())
      if (listed.manifest) last_save_ = std::max(last_save_, listed.manifest->save);
  }
  return ++last_save_;
}

std::string Store::publish(Manifest manifest) {
  manifest.save = next_save();
  check_counts(manifest, path_of(manifest.run.step));  // what is not read again is not saved
  const std::string name = path_of(manifest.run.step), temporary = temporary_path_of(manifest.run.step);
  const std::string file = concat(temporary, "/", kManifestFile), text = print(manifest);
  {
    const Fd handle = create_file(file, cure_of);
    write_all(handle.get(), std::as_bytes(std::span(text)), file);
    sync_file(handle.get(), file, cure_of);
  }
  sync_folder(temporary, cure_of);
  std::string note, old;  // old: what had the name before, under its new one
  if (exists(name)) {
    std::string damage;
    try {
      open_checkpoint(name);
    } catch (const PassingError&) {  // it may be whole, and is replaced as such
    } catch (const UserError& error) {
      damage = error.what();
    }
    if (!damage.empty()) {
      const std::string aside = free_name(manifest.run.step, std::string(kDamaged));
      rename_path(name, aside);
      note = concat("what had the name of the new checkpoint is now ", aside, ": ", damage);
    } else if (exchange_paths(temporary, name)) {
      old = temporary;
    } else {
      old = name +
            std::string(kReplaced);  // for a moment nothing has the name: after a crash there, lock() gives it back
      rename_path(name, old);
    }
  }
  if (old != temporary) rename_path(temporary, name);
  sync_folder(folder_, cure_of);
  if (old.empty()) return note;
  const std::string retired = free_name(manifest.run.step, std::string(kDeleted));
  // under this name first, or after a crash it would look like a save that has not been finished
  if (std::rename(old.c_str(), retired.c_str()) == 0) remove_checkpoint(retired);
  return note;
}

void Store::give_up(int64_t step) { remove_checkpoint(temporary_path_of(step)); }

namespace {

// The newest ones, the one just saved, and whatever these take the frozen weights from that they leave out.
std::set<std::string> kept_names(const std::vector<Listed>& newest_first, int64_t keep, int64_t saved) {
  std::vector<const Listed*> todo;
  for (size_t i = 0; i < newest_first.size(); ++i)
    if (static_cast<int64_t>(i) < keep || newest_first[i].step == saved) todo.push_back(&newest_first[i]);
  std::set<std::string> names;
  while (!todo.empty()) {
    const Listed& one = *todo.back();
    todo.pop_back();
    if (!names.insert(one.name).second || one.manifest->source.kind != WeightSource::Kind::Checkpoint) continue;
    const auto source = std::ranges::find(newest_first, one.manifest->source.path, &Listed::name);
    if (source != newest_first.end()) todo.push_back(&*source);
  }
  return names;
}

}  // namespace

std::vector<std::string> Store::purge(int64_t keep, int64_t saved) {
  std::vector<std::string> deleted, left;
  if (keep == 0) return left;
  std::vector<Listed> complete = list();
  std::erase_if(complete, [](const Listed& listed) { return listed.state != Listed::State::Complete; });
  std::ranges::stable_sort(complete,
                           [](const Listed& a, const Listed& b) { return is_older(*b.manifest, *a.manifest); });
  const std::set<std::string> kept = kept_names(complete, keep, saved);
  for (const Listed& listed : complete) {
    if (kept.contains(listed.name)) continue;
    deleted.push_back(free_name(listed.step, std::string(kDeleted)));
    rename_path(folder_ + "/" + listed.name, deleted.back());
  }
  if (!deleted.empty()) sync_folder(folder_, cure_of);  // or a name may come back, without its files
  for (const std::string& path : deleted)
    if (std::string why = remove_checkpoint(path); !why.empty()) left.push_back(std::move(why));
  return left;
}

std::string Store::set_aside(int64_t step) {
  const std::string name = free_name(step, std::string(kDamaged));
  rename_path(path_of(step), name);
  return name;
}

}  // namespace sfsdp::train::checkpoint
