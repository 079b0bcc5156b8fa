// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/disk_model.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::testing {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

DiskModel::DiskModel(std::string folder) : root_(std::move(folder)) {
  now_[0] = {};
  add(root_, true);
  disk_ = now_;
  bytes_ = bytes_now();
}

void DiskModel::add(const std::string& path, bool is_folder) {
  if (path != root_) {
    const auto [parent, name] = place_of(path);
    now_[parent][name] = ++last_;
    if (is_folder) now_[last_] = {};
  }
  if (!is_folder) return;
  for (const auto& entry : fs::directory_iterator(path)) add(entry.path().string(), entry.is_directory());
}

std::pair<DiskModel::Node, std::string> DiskModel::place_of(const std::string& path) const {
  SFSDP_CHECK(path.starts_with(root_ + "/"), path, " is not in ", root_);
  const std::vector<std::string> names = split(path.substr(root_.size() + 1), '/');
  Node folder = 0;
  for (size_t i = 0; i + 1 < names.size(); ++i) folder = now_.at(folder).at(names[i]);
  return {folder, names.back()};
}

// False: there is nothing to change, as a change before it was lost.
bool DiskModel::apply(const Change& c, Folders& folders) {
  const auto in = folders.find(c.folder);
  if (in == folders.end()) return false;
  auto& names = in->second;
  switch (c.kind) {
    case Change::Kind::Link: names[c.name] = c.node; return true;
    case Change::Kind::Unlink: return names.erase(c.name) > 0;
    case Change::Kind::Rename: {
      const auto from = names.find(c.name);
      if (from == names.end()) return false;
      const Node node = from->second;
      names.erase(from);
      names[c.other] = node;
      return true;
    }
    case Change::Kind::Exchange:
      if (!names.contains(c.name) || !names.contains(c.other)) return false;
      std::swap(names[c.name], names[c.other]);
      return true;
  }
  return false;
}

void DiskModel::change(Change change) {
  SFSDP_CHECK(apply(change, now_), "a change of ", change.name, ", which is not there");
  pending_.push_back(std::move(change));
}

void DiskModel::made(const std::string& path, bool is_folder) {
  const std::lock_guard lock(mutex_);
  const auto [folder, name] = place_of(path);
  change({folder, Change::Kind::Link, name, "", ++last_});
  if (is_folder)
    now_[last_] = disk_[last_] = {};  // the folder itself; its names come with its own sync
  else
    dirty_.insert(last_);
}

void DiskModel::wrote(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto [folder, name] = place_of(path);
  dirty_.insert(now_.at(folder).at(name));
}

void DiskModel::synced(const std::string& path) {
  const std::lock_guard lock(mutex_);
  Node node = 0;
  if (path != root_) {
    const auto [folder, name] = place_of(path);
    node = now_.at(folder).at(name);
  }
  if (!now_.contains(node)) {
    bytes_[node] = bytes_of(path);
    dirty_.erase(node);
    return;
  }
  for (const Change& c : pending_)
    if (c.folder == node) apply(c, disk_);
  std::erase_if(pending_, [&](const Change& c) { return c.folder == node; });
}

void DiskModel::renamed(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  const auto [folder, name] = place_of(from);
  const auto [target, other] = place_of(to);
  SFSDP_CHECK(folder == target, from, " and ", to, " are in two folders");
  change({folder, Change::Kind::Rename, name, other, 0});
}

void DiskModel::exchanged(const std::string& one, const std::string& other) {
  const std::lock_guard lock(mutex_);
  const auto [folder, name] = place_of(one);
  change({folder, Change::Kind::Exchange, name, place_of(other).second, 0});
}

void DiskModel::removed(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto [folder, name] = place_of(path);
  change({folder, Change::Kind::Unlink, name, "", 0});
}

std::map<DiskModel::Node, std::string> DiskModel::bytes_now() const {
  std::map<Node, std::string> bytes = bytes_;
  const std::function<void(Node, const std::string&)> walk = [&](Node folder, const std::string& path) {
    for (const auto& [name, node] : now_.at(folder)) {
      const std::string full = path + "/" + name;
      if (now_.contains(node))
        walk(node, full);
      else if (dirty_.contains(node) || !bytes.contains(node))
        bytes[node] = bytes_of(full);
    }
  };
  walk(0, root_);
  return bytes;
}

DiskModel::Found DiskModel::found(const std::string& what, const Folders& folders,
                                  const std::map<Node, std::string>& bytes) const {
  Found result{what, {}};
  const std::function<void(Node, const std::string&)> walk = [&](Node folder, const std::string& path) {
    for (const auto& [name, node] : folders.at(folder)) {
      if (folders.contains(node)) {
        result.files[path + name + "/"];
        walk(node, path + name + "/");
      } else {
        const auto has = bytes.find(node);
        result.files[path + name] = has == bytes.end() ? "" : has->second;
      }
    }
  };
  walk(0, "");
  return result;
}

std::vector<DiskModel::Found> DiskModel::losses() const {
  const std::lock_guard lock(mutex_);
  const std::map<Node, std::string> now = bytes_now();
  std::vector<Found> all = {found("all that is not synced is lost", disk_, bytes_)};
  for (size_t lost = 0; lost < pending_.size(); ++lost) {
    Folders folders = disk_;
    for (size_t i = 0; i < pending_.size(); ++i)
      if (i != lost) apply(pending_[i], folders);
    const Change& c = pending_[lost];
    const char* kinds[] = {"link ", "unlink ", "rename ", "exchange "};
    all.push_back(found(concat("lost: ", kinds[static_cast<size_t>(c.kind)], c.name, " ", c.other), folders, now));
  }
  for (const Node file : dirty_) {
    std::map<Node, std::string> bytes = now;
    const auto before = bytes_.find(file);
    bytes[file] = before == bytes_.end() ? "" : before->second;
    all.push_back(
        found(concat("lost: the bytes of a file, ", now.contains(file) ? now.at(file).size() : 0), now_, bytes));
  }
  return all;
}

}  // namespace sfsdp::testing
