// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp checkpoint ls | verify | diff | convert`.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/checkpoint/convert.h"
#include "sfsdp/train/checkpoint/left_out.h"
#include "sfsdp/train/checkpoint/load.h"
#include "sfsdp/train/checkpoint/source_reader.h"
#include "sfsdp/train/checkpoint/store.h"

namespace sfsdp::tools {
namespace {

using train::checkpoint::Listed;
using train::checkpoint::Manifest;
using train::checkpoint::Store;
using State = Listed::State;

std::string age_of(int64_t saved_at) {
  const int64_t seconds = std::max<int64_t>(0, std::time(nullptr) - saved_at);
  if (seconds < 120) return concat(seconds, " s");
  if (seconds < 7200) return concat(seconds / 60, " min");
  if (seconds < 172800) return concat(seconds / 3600, " h");
  return concat(seconds / 86400, " days");
}

std::string size_of(const Manifest& manifest) {
  return with_commas(static_cast<double>(manifest.bytes()) / (1 << 20), 1) + " MiB";
}

// What it leaves out, if it does.
std::string without(const Manifest& m) {
  const size_t count = m.left_out().size();
  return count == 0 ? "" : concat(", without ", count, " frozen tensors of ", train::checkpoint::to_string(m.source));
}

std::string describe(const Listed& listed) {
  switch (listed.state) {
    case State::Complete: {
      const Manifest& m = *listed.manifest;
      return concat(size_of(m), ", ", age_of(m.saved_at), " old, of ", m.world_size,
                    m.world_size == 1 ? " rank " : " ranks ", m.mesh,
                    m.model_only ? ", the model alone: no run goes on from it" : "", without(m));
    }
    case State::Damaged: return "damaged: " + listed.why;
    case State::Unfinished: return "not finished: a save is running, or a crash has left it";
    case State::Deleted: return "being removed";
    case State::SetAside: return "set aside as damaged";
    case State::Leftover: return "what a crash left of a save; a run never removes it";
    case State::Foreign: return "not of sfsdp";
  }
  return "";
}

void expect_folder(const std::string& path) {
  if (!train::checkpoint::exists(path))
    throw UserError(concat(path, ": is not there\n  expected a folder of checkpoints, such as outputs/checkpoint"));
}

int list(const std::string& folder, std::ostream& out) {
  expect_folder(folder);
  for (const Listed& listed : Store(folder).list()) out << listed.name << ": " << describe(listed) << "\n";
  return 0;
}

// Names in a checkpoint's folder that its manifest has not, sorted.
std::vector<std::string> strangers(const Manifest& manifest, const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name != train::checkpoint::kManifestFile &&
        std::ranges::find(manifest.files, name, &train::checkpoint::StoredFile::name) == manifest.files.end())
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// Compares what the checkpoint leaves out with its digests, where it is.  returns: a line for each tensor that has changed
std::vector<std::string> verify_source(const Manifest& manifest, const std::string& path, std::ostream& out) {
  std::vector<std::string> wrong;
  const auto left_out = manifest.left_out();
  if (left_out.empty()) return wrong;
  if (manifest.source.kind == train::checkpoint::WeightSource::Kind::Initial) {
    out << path << ": leaves out " << left_out.size() << " frozen tensors, "
        << train::checkpoint::to_string(manifest.source) << ": a run alone draws and compares them\n";
    return wrong;
  }
  train::checkpoint::SourceReader source(manifest, path, "", 0);
  for (const auto* tensor : left_out) {
    try {
      source.read(*tensor, 0, {});
    } catch (const UserError& error) {
      wrong.emplace_back(error.what());
    }
  }
  if (wrong.empty())
    out << path << ": leaves out " << left_out.size() << " frozen tensors, whose digests those of "
        << train::checkpoint::to_string(manifest.source) << " have\n";
  return wrong;
}

// Verifies one checkpoint.  returns: how many places are wrong; what does not belong there harms nothing
size_t verify_one(const std::string& path, std::ostream& out) {
  std::vector<std::string> wrong;
  std::string size;
  try {
    const Manifest manifest = train::checkpoint::open_checkpoint(path);
    size = size_of(manifest);
    wrong = train::checkpoint::verify(manifest, path);
    for (std::string& line : verify_source(manifest, path, out)) wrong.push_back(std::move(line));
    for (const std::string& name : strangers(manifest, path))
      out << path << "/" << name << ": is not of the checkpoint, and nothing reads it\n";
  } catch (const UserError& error) {
    wrong = {error.what()};
  }
  if (wrong.empty()) out << path << ": " << size << ", every byte is what was written\n";
  for (const std::string& line : wrong) out << line << "\n";
  return wrong.size();
}

bool is_checkpoint(const std::string& path) {
  return train::checkpoint::exists(concat(path, "/", train::checkpoint::kManifestFile));
}

// One checkpoint, or all of a folder.
int verify(const std::string& path, std::ostream& out) {
  expect_folder(path);
  size_t wrong = 0;
  bool any = is_checkpoint(path);
  if (any) wrong += verify_one(path, out);
  for (const Listed& listed : any ? std::vector<Listed>() : Store(path).list()) {
    if (listed.state != State::Complete && listed.state != State::Damaged) continue;
    any = true;
    wrong += verify_one(path + "/" + listed.name, out);
  }
  if (!any) throw UserError(concat(path, ": no checkpoint\n  expected a folder step-N, or one that holds such"));
  return wrong == 0 ? 0 : 1;
}

// Lines of where the two runs stand differently. A model alone has no place in the data.
std::vector<std::string> run_differences(const Manifest& a, const Manifest& b) {
  std::vector<std::string> lines;
  const auto compare = [&](const std::string& what, auto first, auto second) {
    if (first != second) lines.push_back(concat(what, ": ", first, " in the first, ", second, " in the second"));
  };
  compare("step", a.run.step, b.run.step);
  compare("tokens trained on", a.run.tokens, b.run.tokens);
  if (a.model_only || b.model_only) return lines;
  std::map<std::string, int64_t> keys = a.run.data;
  keys.insert(b.run.data.begin(), b.run.data.end());
  const auto position = [](const Manifest& m, const std::string& key) {
    const auto found = m.run.data.find(key);
    return found == m.run.data.end() ? std::string("nothing") : std::to_string(found->second);
  };
  for (const auto& [key, value] : keys) compare("data position " + key, position(a, key), position(b, key));
  return lines;
}

int diff(const std::string& first, const std::string& second, std::ostream& out) {
  const auto of_run =
      run_differences(train::checkpoint::open_checkpoint(first), train::checkpoint::open_checkpoint(second));
  for (const std::string& line : of_run) out << line << "\n";
  int64_t compared = 0;
  const auto found = train::checkpoint::differences(first, second, &compared);
  for (const auto& d : found) {
    out << d.name << ": ";
    if (d.what.empty())
      out << with_commas(d.elements) << (d.elements == 1 ? " element differs" : " elements differ") << ", by at most "
          << d.largest << "\n";
    else
      out << d.what << "\n";
  }
  out << compared << " tensors compared, " << found.size() << " of all differ\n";
  return found.empty() && of_run.empty() ? 0 : 1;
}

int convert(const Request& request, const std::string& from, const std::string& to, std::ostream& out) {
  std::optional<ir::DType> dtype;
  if (request.has("dtype")) dtype = train::checkpoint::parse_export_dtype(request.get("dtype"));
  if (request.has("hf-assets")) {
    train::checkpoint::convert_to_hf(from, to, request.get("hf-assets"), dtype.value_or(ir::DType::f32),
                                     request.has("merge"));
    out << "wrote " << to << "\n";
    return 0;
  }
  train::checkpoint::ConvertOptions options;
  options.model_only = request.has("model-only");
  options.dtype = dtype;
  if (request.has("ranks")) options.ranks = number_of("--ranks", request.get("ranks"), 1, 100000);
  const std::string written = train::checkpoint::convert(from, to, options);
  out << "wrote " << written << "\n";
  return 0;
}

}  // namespace

int run_checkpoint(const Request& request, std::ostream& out, std::ostream& /*err*/) {
  const std::vector<std::string>& operands = request.own.operands;
  const std::string what = operands.empty() ? "" : operands[0];
  if (what == "ls" && operands.size() == 2) return list(operands[1], out);
  if (what == "verify" && operands.size() == 2) return verify(operands[1], out);
  if (what == "diff" && operands.size() == 3) return diff(operands[1], operands[2], out);
  if (what == "convert" && operands.size() == 3) return convert(request, operands[1], operands[2], out);
  throw UserError(concat("sfsdp checkpoint ", join(operands, " "),
                         "\n  expected ls FOLDER, verify PATH, diff A B, or convert FROM TO",
                         did_you_mean(what, {"ls", "verify", "diff", "convert"})));
}

}  // namespace sfsdp::tools
