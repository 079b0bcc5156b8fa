// SPDX-License-Identifier: BSD-3-Clause
// What a loss of power may leave of a folder. A file's bytes are on the disk once the file is synced; a name that was given,
// changed or taken away is there once its folder is synced. Until then each may be lost by itself. Source: fsync(2), and
// "All File Systems Are Not Created Equal", OSDI 2014. For tests only.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sfsdp::testing {

// Is told of each change below the folder after it was made. May be called by several threads.
class DiskModel {
 public:
  // What is there now is on the disk.
  explicit DiskModel(std::string folder);

  void made(const std::string& path, bool is_folder);  // of a name that was not there
  void wrote(const std::string& path);                 // or emptied
  void synced(const std::string& path);                // a file or a folder
  void renamed(const std::string& from, const std::string& to);
  void exchanged(const std::string& one, const std::string& other);
  void removed(const std::string& path);

  // A folder as it may be found after the power is back: files with their bytes, folders end in "/".
  struct Found {
    std::string what;  // "all that is not synced is lost", "lost: rename step-3.tmp to step-3"
    std::map<std::string, std::string> files;
  };
  // All that is not synced lost; then each change lost alone, with every other one on the disk.
  std::vector<Found> losses() const;

 private:
  using Node = int64_t;
  struct Change {
    Node folder;
    enum class Kind : uint8_t { Link, Unlink, Rename, Exchange } kind;
    std::string name, other;
    Node node;  // of Link
  };
  using Folders = std::map<Node, std::map<std::string, Node>>;

  std::pair<Node, std::string> place_of(const std::string& path) const;  // its folder and its name there
  void change(Change change);
  static bool apply(const Change& change, Folders& folders);
  void add(const std::string& path, bool is_folder);
  Found found(const std::string& what, const Folders& folders, const std::map<Node, std::string>& bytes) const;
  std::map<Node, std::string> bytes_now() const;

  mutable std::mutex mutex_;
  std::string root_;
  Node last_ = 0;
  Folders now_, disk_;                 // names; node 0 is the folder
  std::vector<Change> pending_;        // in order
  std::map<Node, std::string> bytes_;  // of files, as on the disk
  std::set<Node> dirty_;               // files whose bytes are others now
};

}  // namespace sfsdp::testing
