// SPDX-License-Identifier: BSD-3-Clause
// Files and folders of checkpoints, beside what base/durable_file.h has. Every failure throws as fail() does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/fd.h"

namespace sfsdp::train::checkpoint {

// Names the setting that helps, where one does.
const char* cure_of(int error);
// As fail_on_file, with that cure.
[[noreturn]] void fail(const std::string& path, const std::string& what, int error);

// A regular file; its size.
Fd open_file(const std::string& path, int64_t* bytes);

// Short writes go on where they stopped.
void write_all(int fd, std::span<const std::byte> bytes, const std::string& path);
// The same for a new file from memory that begins on a page: whole pages go to the disk past the page cache, whose filling
// and emptying costs several copies of them. Through the page cache where the file system wants that.
void write_past_cache(int fd, std::span<const std::byte> bytes, const std::string& path);
// Fills `bytes` from `offset`; a file that ends before is an error.
void read_all(int fd, int64_t offset, std::span<std::byte> bytes, const std::string& path);

// Creates the folder and those above it that are missing, each synced into the one that holds it.
void make_folders(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
// Both exist; each gets the other's name, in one step.  returns: false where the file system cannot
bool exchange_paths(const std::string& one, const std::string& other);

struct FolderEntry {
  std::string name;
  bool is_folder = false;  // no link to one
  bool is_link = false;
  int64_t bytes = 0;  // of a file
};
// Sorted by name, without . and ..
std::vector<FolderEntry> list_folder(const std::string& path);
// Removes the files of a folder that have a name of `is_ours`, and the folder if nothing else is in it. If it is a
// link to a folder, the link alone is removed.
//   returns: "", or why something is left
std::string remove_folder(const std::string& path, const std::function<bool(const std::string&)>& is_ours);
// Where a link points to; "" for what is none.
std::string link_target(const std::string& path);

bool exists(const std::string& path);

}  // namespace sfsdp::train::checkpoint
