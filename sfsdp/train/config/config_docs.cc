// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/check.h"
#include "sfsdp/train/config/config_fields.h"

namespace sfsdp::train {

namespace {

std::string status_note(KeyStatus status) {
  if (status == KeyStatus::Later) return "**not yet**: ";
  if (status == KeyStatus::Inert) return "*no effect*: ";
  return "";
}

// A table cell must not hold a bar of its own.
std::string cell(const std::string& text) {
  std::string escaped;
  for (char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

}  // namespace

std::string describe_all_keys() {
  std::string text =
      "A key is set in the TOML file under its section, or by `--section.key value`; a boolean by `--section.key` or\n"
      "`--section.no_key`. Flags win over the file. *no effect*: accepted, logged once when it is not the default.\n"
      "**not yet**: only the default is accepted.\n";
  const JobConfig defaults;
  for (const SectionInfo& section : config_sections()) {
    text += concat("\n## [", section.path, "]\n\n", section.help,
                   "\n\n| key | type | default | values | meaning |\n|---|---|---|---|---|\n");
    for (const Field& field : config_fields()) {
      if (field.section != section.path) continue;
      const std::string value = literal(field, defaults);
      text += concat("| ", field.key, " | ", field.type_name(), " | ", value.empty() ? "unset" : "`" + value + "`",
                     " | ", cell(field.rule.text()), " | ", status_note(field.status), cell(field.help), " |\n");
    }
  }
  text +=
      "\n## [model.args]\n\nAny argument of the model's flavor by its name, e.g. `vocab_size = 256` or\n"
      "`--model.args.vocab_size 256`. The model refuses a name that it does not know.\n";
  return text;
}

std::string describe_flags() {
  std::string text;
  const JobConfig defaults;
  for (const Field& field : config_fields()) {
    if (field.status != KeyStatus::Used) continue;
    const std::string value = literal(field, defaults);
    const std::string rule = field.rule.text();
    text += concat("  --", field.path(), field.is_bool() ? "" : " " + field.type_name(), "\n      ", field.help,
                   rule.empty() ? "" : "; " + rule, " [", value.empty() ? "unset" : value, "]\n");
  }
  return text + "  --model.args.KEY VALUE\n      any argument of the model's flavor\n";
}

}  // namespace sfsdp::train
