// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/damaged_archive.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/describe.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/program.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::testing {

std::string temporary_archive(const std::string& name) {
  return concat(std::filesystem::temp_directory_path().string(), "/sfsdp-damaged-", getpid(), "-", name);
}

std::string exported_fixture(const std::string& name) {
  return source_dir() + "/tests/fixtures/exported/" + name + ".pt2";
}

ZipParts exported_parts(const std::string& name) {
  const auto archive = exported::ZipArchive::open(exported_fixture(name));
  ZipParts parts;
  for (const exported::ZipEntry& entry : archive.entries())
    parts.emplace_back(entry.name, archive.read_text(entry, 1 << 20));
  return parts;
}

std::string refusal_of_file(const std::string& path) {
  try {
    static_cast<void>(describe(exported::read_program(path)));
  } catch (const UserError& error) {
    const std::string text = error.what();
    for (const std::string& line : split(text, '\n'))
      SFSDP_CHECK(exported::is_printable(line), "control characters in a message");
    SFSDP_CHECK(text.starts_with(path + ": "), text);
    return text.substr(path.size() + 2);
  }
  return "";
}

std::string refusal_of(const std::string& bytes) {
  const std::string path = temporary_archive("archive.pt2");
  std::ofstream(path, std::ios::binary) << bytes;
  const std::string text = refusal_of_file(path);
  std::filesystem::remove(path);
  return text;
}

std::string json_with(const std::string& text, const std::string& pointer, const std::string& value) {
  static const std::string kMark = "@@here@@";
  auto document = nlohmann::ordered_json::parse(text);
  const nlohmann::ordered_json::json_pointer at(pointer);
  SFSDP_CHECK(document.contains(at), pointer);
  if (value.empty())
    document.at(at.parent_pointer()).erase(at.back());
  else
    document.at(at) = kMark;
  std::string changed = document.dump();
  if (!value.empty()) changed.replace(changed.find('"' + kMark + '"'), kMark.size() + 2, value);
  return changed;
}

}  // namespace sfsdp::testing
