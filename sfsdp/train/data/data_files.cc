// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/data_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_of_pattern(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files;
  std::error_code ignored;
  for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i)
    if (fs::is_regular_file(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return files;
}

std::vector<std::string> files_below(const std::string& folder, const std::function<bool(const std::string&)>& accepts,
                                     std::string_view expected) {
  std::error_code error;
  std::vector<std::string> files;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    std::error_code ignored;  // a dangling link is no data
    if (entries->is_regular_file(ignored) && accepts(entries->path().filename().string()))
      files.push_back(entries->path().string());
  }
  if (error) fail_to_read_data(folder, error.message(), expected);
  return files;
}

}  // namespace

void fail_to_read_data(const std::string& path, const std::string& why, std::string_view expected) {
  throw UserError(concat(path.empty() ? "training.dataset_path" : path, ": ", why, "\n  expected ", expected,
                         "; set --training.dataset_path"));
}

std::vector<std::string> data_files(const std::string& path,
                                    const std::function<bool(const std::string& name)>& accepts,
                                    std::string_view expected) {
  if (path.empty()) fail_to_read_data("", "no file or folder is named", expected);
  std::error_code ignored;
  std::vector<std::string> files = {path};
  if (fs::is_other(path, ignored)) {  // to open a pipe waits for who writes it, and a device may have no end
    fail_to_read_data(path, "is a pipe, a device or a socket", expected);
  } else if (fs::is_directory(path, ignored)) {
    files = files_below(path, accepts, expected);
    if (files.empty()) fail_to_read_data(path, "no such file below this folder", expected);
  } else if (!fs::exists(path, ignored) && path.find_first_of("*?[") != std::string::npos) {
    files = files_of_pattern(path);
    if (files.empty()) fail_to_read_data(path, "no file has a name like this", expected);
  }
  std::sort(files.begin(), files.end());  // glob() sorts as the locale does, a folder's own order is the disk's
  return files;
}

}  // namespace sfsdp::train
