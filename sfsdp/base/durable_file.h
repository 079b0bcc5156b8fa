// SPDX-License-Identifier: BSD-3-Clause
// Files that are on the disk when a call returns. Every failure names the file, what could not be done with it, the
// system's words, and a cure, as fail_on_file does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "sfsdp/base/error.h"
#include "sfsdp/base/fd.h"

namespace sfsdp {

// The system refused, and a later try would find it so again.
class FileError : public UserError {
 public:
  using UserError::UserError;
};

// What is expected instead of an error (errno), in the words of whoever has the file, who knows its settings; nullptr: those that
// hold wherever it is.
using Cure = const char* (*)(int error);

// "FILE: cannot be written: No space left on device", and a cure.
//   throws: always; PassingError where a later try may find the fault gone, else FileError
[[noreturn]] void fail_on_file(const std::string& path, std::string_view what, int error, Cure cure = nullptr);

// For writing: a new or emptied file. Links are not followed.
Fd create_file(const std::string& path, Cure cure = nullptr);
void write_file(int fd, std::span<const std::byte> bytes, int64_t offset, const std::string& path);
void sync_file(int fd, const std::string& path, Cure cure = nullptr);
// The folder's names are on the disk.
void sync_folder(const std::string& path, Cure cure = nullptr);
// Renames, and syncs the folder that `to` lies in.
void rename_file(const std::string& from, const std::string& to);
// Under a temporary name, PATH.tmp, and synced, then renamed: a reader sees all of it or nothing.
void write_atomically(const std::string& path, std::string_view text);

// The same for a file that `body` writes, and which must not be there.
//   file, path: what body writes to, and its name for messages
//   throws:     UserError for a name that is taken; what body throws, and then there is no file
void write_new_file(const std::string& path, const std::function<void(int file, const std::string& path)>& body);

}  // namespace sfsdp
