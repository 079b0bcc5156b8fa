// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/weights/hf_copy.h"

namespace sfsdp::train {
namespace {

namespace fs = std::filesystem;

// What a tokenizer and generation need, as transformers names them.
constexpr std::array<const char*, 11> kAssets = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "vocab.txt",
                                                 "merges.txt",
                                                 "tokenizer.model",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "generation_config.json"};

Fd open_file(const std::string& path, int flags) {
  Fd file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file) fail_on_file(path, "cannot be opened", errno);
  return file;
}

// Space is asked for at once, where the file system can: a full disk is found before hours of writing, not in them.
void reserve(int fd, uint64_t bytes, const std::string& path) {
  const auto size = static_cast<off_t>(bytes);
  if (::fallocate(fd, 0, 0, size) == 0) return;
  const std::string what = concat("cannot be given ", bytes, " bytes");
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail_on_file(path, what, errno);
  if (::ftruncate(fd, size) != 0) fail_on_file(path, what, errno);
}

void write_text(const std::string& path, std::string_view text) {
  const Fd file = create_file(path);
  write_file(file.get(), std::as_bytes(std::span(text)), 0, path);
  sync_file(file.get(), path);
}

void copy_assets(const std::string& from, const std::string& to) {
  for (const char* name : kAssets) {
    const fs::path source = fs::path(from) / name, target = fs::path(to) / name;
    std::error_code error;
    if (!fs::is_regular_file(source, error)) continue;
    if (!fs::copy_file(source, target, fs::copy_options::overwrite_existing, error))
      throw UserError(concat(source.string(), " cannot be copied to ", target.string(), ": ", error.message(),
                             "\n  expected a readable file, and space for it"));
    sync_file(open_file(target.string(), O_RDONLY).get(), target.string());
  }
}

}  // namespace

std::string check_hf_assets(const std::string& assets) {
  constexpr std::array<const char*, 4> kTokenizers = {"tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model"};
  std::error_code ignored;
  if (assets.empty()) return "";
  if (!fs::is_directory(assets, ignored))
    throw UserError(
        concat("model.hf_assets_path = ", assets,
               ": there is no such folder, but checkpoint.last_save_in_hf = true takes the tokenizer's files"
               " from there\n  expected a folder; or --model.hf_assets_path= for weights and config.json alone"));
  const auto is_there = [&](const char* name) { return fs::is_regular_file(fs::path(assets) / name, ignored); };
  if (std::ranges::any_of(kTokenizers, is_there)) return "";
  return concat(assets, ": no tokenizer's files; the Hugging Face folder of the last step will have none");
}

HfFolderWriter::HfFolderWriter(HfLayout layout, const std::string& folder, size_t staging_bytes)
    : layout_(std::move(layout)),
      folder_(fs::path(folder).lexically_normal().string()),
      most_staging_(staging_bytes),
      files_(layout_.files.size()) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  incomplete_ = folder_ + ".incomplete";
}

// What has the name of the incomplete folder, whosever it is, gets another one: it is not ours to empty.
void HfFolderWriter::move_aside() {
  for (int i = 2; set_aside_.empty() || fs::exists(fs::symlink_status(set_aside_)); ++i)
    set_aside_ = concat(incomplete_, "-", i);
  if (::rename(incomplete_.c_str(), set_aside_.c_str()) != 0) fail_on_file(incomplete_, "cannot be set aside", errno);
}

// Takes the incomplete folder for this process, empty.
void HfFolderWriter::lock() {
  if (take()) return;
  move_aside();
  lock_ = Fd();
  if (!take()) throw UserError(incomplete_ + ": another process puts files there\n  expected it for this export alone");
}

// False: it has files.
bool HfFolderWriter::take() {
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_empty(folder_, error))
    throw UserError(concat(folder_,
                           " is there already, and not empty\n  expected no folder of that name: nothing is"
                           " overwritten; move it, or choose another"));
  fs::create_directories(incomplete_, error);
  if (error)
    throw UserError(
        concat(incomplete_, " cannot be made: ", error.message(), "\n  expected permission to write there"));
  Fd handle = open_file(incomplete_, O_RDONLY | O_DIRECTORY);
  if (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0)
    throw UserError(concat(incomplete_,
                           " is being written by another process\n  expected one at a time; wait for it, or"
                           " choose another folder"));
  lock_ = std::move(handle);
  return fs::is_empty(incomplete_, error);
}

void HfFolderWriter::write_small_files(const std::string& config_json, const std::string& assets) {
  if (!layout_.index.empty()) write_text(incomplete_ + "/model.safetensors.index.json", layout_.index);
  if (!assets.empty()) copy_assets(assets, incomplete_);
  write_text(incomplete_ + "/config.json", config_json);
}

void HfFolderWriter::create(const std::string& config_json, const std::string& assets) {
  lock();
  try {
    for (size_t i = 0; i < layout_.files.size(); ++i) {
      const HfFile& file = layout_.files[i];
      const std::string path = incomplete_ + "/" + file.name;
      files_[i] = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
      reserve(files_[i].get(), file.bytes, path);
      write_file(files_[i].get(), std::as_bytes(std::span(file.header)), 0, path);
    }
    write_small_files(config_json, assets);
  } catch (...) {
    abandon();
    throw;
  }
}

int HfFolderWriter::file_of(size_t index) {
  Fd& file = files_[index];
  if (file.get() < 0) file = open_file(incomplete_ + "/" + layout_.files[index].name, O_WRONLY);
  return file.get();
}

void HfFolderWriter::write(const HfPlaced& tensor, const plan::Box& box, std::span<const std::byte> values,
                           ir::DType dtype) {
  if (box.flat.length == 0) return;
  const int fd = file_of(tensor.file);
  const std::string path = incomplete_ + "/" + layout_.files[tensor.file].name;
  if (!staging_) {
    staging_size_ = std::min<size_t>(most_staging_, layout_.largest_tensor());
    staging_ = std::make_unique_for_overwrite<std::byte[]>(staging_size_);
  }
  const auto element = static_cast<uint64_t>(ir::size_in_bytes(tensor.dtype));
  const int64_t lost =
      copy_to_hf(tensor.tensor, tensor.source.shape, box, values, dtype, tensor.dtype, {staging_.get(), staging_size_},
                 [&](int64_t first, std::span<const std::byte> bytes) {
                   const uint64_t at = static_cast<uint64_t>(first) * element;
                   SFSDP_CHECK(at + bytes.size() <= tensor.bytes, at, " + ", bytes.size(), " of ", tensor.bytes,
                               " bytes of ", tensor.tensor.hf_name);
                   write_file(fd, bytes, static_cast<int64_t>(tensor.begin + at), path);
                 });
  if (lost > 0)
    throw UserError(concat(tensor.source.name, ": ", lost, " of the values become infinite as ",
                           ir::to_string(tensor.dtype),
                           "\n  expected values that it can hold; choose bfloat16 or"
                           " float32 for export_dtype"));
}

void HfFolderWriter::flush() {
  for (size_t i = 0; i < files_.size(); ++i)
    if (files_[i].get() >= 0) sync_file(files_[i].get(), incomplete_ + "/" + layout_.files[i].name);
}

void HfFolderWriter::publish() {
  flush();
  sync_folder(incomplete_);
  rename_file(incomplete_, folder_);
  lock_ = Fd();
}

void HfFolderWriter::abandon() noexcept {
  if (lock_.get() < 0) return;
  std::error_code ignored;
  fs::remove_all(incomplete_, ignored);
  lock_ = Fd();
}

}  // namespace sfsdp::train
