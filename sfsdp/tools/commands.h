// SPDX-License-Identifier: BSD-3-Clause
// The commands of the sfsdp binary: what each takes, and how its arguments are read. One table for parsing and help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/arguments.h"
#include "sfsdp/base/error.h"
#include "sfsdp/train/config/config.h"

namespace sfsdp::tools {

struct Command {
  std::string name;     // "plan"
  std::string usage;    // what stands after the name: "--config F --world N"
  std::string summary;  // one line
  std::vector<Option> options = {};
  bool takes_config = false;            // --config and train's keys too
  std::string operand = {}, rest = {};  // as in Syntax
  size_t most_operands = 1;
};

const std::vector<Command>& commands();
//   throws: UserError naming the command that was probably meant
const Command& find_command(const std::string& name);
// Usage and options of one command, all of train's keys for train.
std::string help_of(const Command& command);
// Usage and summary of all commands.
std::string help_of_all();

// The arguments of one call.
struct Request {
  std::vector<std::string> args;         // as given
  Arguments own;                         // the command's own options
  int64_t world = 1;                     // --world, or what --mesh multiplies to
  std::vector<std::string> config_args;  // for train::load_config

  // By name without its dashes: "machine", "n".
  bool has(const std::string& name) const;
  std::string get(const std::string& name, const std::string& fallback = "") const;
  std::vector<std::string> all(const std::string& name) const;
};

// --mesh dp_replicate=2,dp_shard=4 is short for the degrees of [parallelism].
//   throws: UserError with all mistakes: a flag that does not exist, one without its value, a world that is no number, an
//   axis that is none
Request parse_request(const Command& command, std::span<const std::string> args);

// An option of `request` that must be one of `choices`; the first of them where it is not given.
//   throws: UserError naming the choices and the nearest
std::string choice_of(const Request& request, const std::string& name, const std::vector<std::string>& choices);
// An option that must be a whole number from low to high.  throws: UserError
int64_t number_of(const std::string& name, const std::string& text, int64_t low, int64_t high);

// What train would take; costs are counted on --machine where parallelism.fsdp_machine is not set.
train::JobConfig config_of(const Request& request);

using Run = std::function<int(const Request& request, std::ostream& out, std::ostream& err)>;
// Prints the help that is asked for, or parses and runs. The one place that turns exceptions into "error: ..." on `err`.
//   returns: what `run` does; 2 for a UserError, 1 for whatever else it throws
int run_command(const Command& command, std::span<const std::string> args, const Run& run, std::ostream& out,
                std::ostream& err);

// The commands themselves; train is train::run_train, launch is in launch.h.
int run_inspect(const Request& request, std::ostream& out, std::ostream& err);
int run_plan(const Request& request, std::ostream& out, std::ostream& err);
int run_simulate(const Request& request, std::ostream& out, std::ostream& err);
// Starts N ranks of itself as `sfsdp launch` does, which measure together; rank 0 writes the machine file.
int run_calibrate(const Request& request, std::ostream& out, std::ostream& err);
// IR text in, passes, IR text out.
int run_opt(const Request& request, std::ostream& out, std::ostream& err);
// What runs wrote into their folders, as one HTML page.
int run_report(const Request& request, std::ostream& out, std::ostream& err);
// What a folder of checkpoints holds; 1 where a checkpoint is not what was written, or two differ.
int run_checkpoint(const Request& request, std::ostream& out, std::ostream& err);
// Trained weights of a model from Python as an archive or a state dict; adapters.
int run_export(const Request& request, std::ostream& out, std::ostream& err);
// A trained model of models/ as an archive.
int run_export_model(const Request& request, std::ostream& out, std::ostream& err);
int run_doctor(const Request& request, std::ostream& out, std::ostream& err);
// doctor --flight DIR: the flight records of a run in words.
int run_flight(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
