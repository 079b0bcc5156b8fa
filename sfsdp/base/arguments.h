// SPDX-License-Identifier: BSD-3-Clause
// Reads the arguments of a command: --name value, --name=value, booleans bare or with true or false.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp {

// One option. In names - and _ are one.
struct Option {
  std::string name;  // "--machine", "-n"; one that ends in a dot stands for all that begin so: "--model.args."
  std::string
      value;  // what help calls its value, "FILE"; "": a boolean, which --no_name and --section.no_name switch off
  std::string help;
  bool value_is_optional = false;  // --print-ir-diff, --print-ir-diff=FOLDER
};

// What a command takes.
struct Syntax {
  std::string command;  // "sfsdp opt", for messages
  std::vector<Option> options = {};
  std::string operand = {};  // what help calls the arguments that are no options, "FILE"; "": there are none
  std::string rest = {};     // what help calls the arguments after --; "": there are none
  size_t most_operands = 1;
};

struct GivenOption {
  std::string name;   // as Option spells it; "--model.args.dim" of a name that ends in a dot
  std::string value;  // of a boolean true or false; "" where an optional value is left out
};

struct Arguments {
  std::vector<GivenOption> options;  // as they came
  std::vector<std::string> operands;
  std::optional<std::vector<std::string>> rest;
  std::vector<std::string> errors;  // each mistake: what, expected, got, and the name that was probably meant

  bool has(std::string_view name) const;  // given, and not false
  // The value of the last that was given.
  std::string get(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> all(std::string_view name) const;
};

// A value may begin with one dash (-1), not with two; one that does stands after =.
Arguments parse_arguments(std::span<const std::string> args, const Syntax& syntax);

// A line or two for each option.
std::string describe(std::span<const Option> options);

// The key that `path`, "training.stepz", is a misspelling of: one of the same name in another section, else a close one.
std::string nearest_key(std::string_view path, const std::vector<std::string>& keys);

}  // namespace sfsdp
