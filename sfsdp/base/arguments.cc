// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/arguments.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp {
namespace {

bool is_bool(const Option& option) { return option.value.empty(); }

// One spelling of a name: underscores after the dashes in front.
std::string normal(std::string_view name) {
  std::string text(name);
  const size_t begin = std::min(text.find_first_not_of('-'), text.size());
  std::replace(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), '-', '_');
  return text;
}

// "--job.no_print_config" -> "--job.print_config"; "" where no no_ stands there.
std::string without_no(const std::string& name) {
  const size_t dot = name.rfind('.');
  const size_t key = dot == std::string::npos ? std::min(name.find_first_not_of('-'), name.size()) : dot + 1;
  return name.compare(key, 3, "no_") == 0 ? name.substr(0, key) + name.substr(key + 3) : "";
}

class Reader {
 public:
  Reader(std::span<const std::string> args, const Syntax& syntax) : args_(args), syntax_(syntax) {}

  Arguments read() {
    for (; at_ < args_.size(); ++at_) {
      const std::string& arg = args_[at_];
      if (arg == "--" && !syntax_.rest.empty()) {
        result_.rest.emplace(args_.begin() + static_cast<std::ptrdiff_t>(at_) + 1, args_.end());
        break;
      }
      if (arg.size() < 2 || arg[0] != '-')
        read_operand(arg);
      else
        read_option(arg.substr(0, arg.find('=')), arg);
    }
    return std::move(result_);
  }

 private:
  void read_operand(const std::string& arg) {
    if (!syntax_.operand.empty() && result_.operands.size() < syntax_.most_operands)
      result_.operands.push_back(arg);
    else
      result_.errors.push_back(concat("argument ", arg, "\n  expected a flag of ", syntax_.command,
                                      syntax_.rest.empty() ? "" : ", or -- before " + syntax_.rest));
  }

  void read_option(const std::string& name, const std::string& arg) {
    std::optional<std::string> value;
    if (name.size() < arg.size()) value = arg.substr(name.size() + 1);
    if (const Option* option = find(normal(name))) {
      const bool is_prefix = option->name.ends_with('.');
      return add(*option, is_prefix ? normal(name) : option->name, name, std::move(value));
    }
    const Option* negated = find(without_no(normal(name)));
    if (negated && is_bool(*negated)) {
      if (value) return fail(concat(name, " = ", *value), concat("no value, or ", negated->name, " ", *value));
      result_.options.push_back({negated->name, "false"});
      return;
    }
    std::vector<std::string> names = {"--help"};  // which whoever calls this has looked for
    for (const Option& option : syntax_.options) names.push_back(option.name);
    const std::string near = nearest_key(normal(name), names);
    fail(concat("unknown flag ", name), concat("a flag that ", syntax_.command, " --help lists",
                                               near.empty() ? "" : concat("; did you mean ", near, "?")));
    if (!value && has_next()) ++at_;  // its value is no mistake of its own
  }

  void add(const Option& option, std::string name, const std::string& typed, std::optional<std::string> value) {
    if (is_bool(option)) {
      if (!value && at_ + 1 < args_.size() && (args_[at_ + 1] == "true" || args_[at_ + 1] == "false"))
        value = args_[++at_];
      if (value && *value != "true" && *value != "false")
        return fail(concat(typed, " = ", *value), "true or false; bare it is true");
      result_.options.push_back({std::move(name), value.value_or("true")});
      return;
    }
    if (option.value_is_optional) {
      if (value && value->empty()) return fail(concat(typed, "="), concat(typed, ", or ", typed, "=", option.value));
      result_.options.push_back({std::move(name), value.value_or("")});
      return;
    }
    if (!value && !has_next()) return fail(concat(typed, " without a value"), concat(typed, " ", option.value));
    result_.options.push_back({std::move(name), value ? *value : args_[++at_]});
  }

  bool has_next() const { return at_ + 1 < args_.size() && !args_[at_ + 1].starts_with("--"); }

  const Option* find(const std::string& name) const {
    for (const Option& option : syntax_.options) {
      const std::string own = normal(option.name);
      if (own == name || (own.ends_with('.') && name.size() > own.size() && name.starts_with(own))) return &option;
    }
    return nullptr;
  }

  void fail(const std::string& what, const std::string& expected) {
    result_.errors.push_back(concat(what, "\n  expected ", expected));
  }

  std::span<const std::string> args_;
  const Syntax& syntax_;
  size_t at_ = 0;
  Arguments result_;
};

}  // namespace

bool Arguments::has(std::string_view name) const {
  const auto found = std::find_if(options.rbegin(), options.rend(), [&](const auto& o) { return o.name == name; });
  return found != options.rend() && found->value != "false";
}

std::string Arguments::get(std::string_view name, std::string_view fallback) const {
  const std::vector<std::string> values = all(name);
  return values.empty() ? std::string(fallback) : values.back();
}

std::vector<std::string> Arguments::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const GivenOption& option : options)
    if (option.name == name) values.push_back(option.value);
  return values;
}

Arguments parse_arguments(std::span<const std::string> args, const Syntax& syntax) {
  return Reader(args, syntax).read();
}

std::string describe(std::span<const Option> options) {
  std::string text;
  for (const Option& option : options) {
    std::string left = "  " + option.name;
    if (left.ends_with('.')) left += "KEY";
    if (!option.value.empty()) left += option.value_is_optional ? "[=" + option.value + "]" : " " + option.value;
    constexpr size_t kColumn = 28;
    text += left.size() < kColumn - 1 ? left + std::string(kColumn - left.size(), ' ') : left + "\n      ";
    text += option.help + "\n";
  }
  return text;
}

std::string nearest_key(std::string_view path, const std::vector<std::string>& keys) {
  const auto last = [](std::string_view p) {
    const size_t dot = p.rfind('.');
    return p.substr(dot == std::string_view::npos ? std::min(p.find_first_not_of('-'), p.size()) : dot + 1);
  };
  std::vector<std::string> same;
  for (const std::string& key : keys)
    if (key.find('.') != std::string::npos && last(key) == last(path)) same.push_back(key);
  if (same.empty()) return nearest(path, keys);
  const std::string near = nearest(path, same);
  return near.empty() ? same.front() : near;
}

}  // namespace sfsdp
