// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/imagined_ranks.h"

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

constexpr int64_t kMost = 1 << 20;

}  // namespace

int64_t imagined_ranks(const std::function<const char*(const char*)>& variable) {
  // each process would be rank 0 and write the same files
  for (const auto& [name, one] : {std::pair{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}})
    if (const char* text = variable(name); text && std::string_view(text) != one)
      throw UserError(concat("comm.mode = fake_backend with ", name, " = ", quote_safe(text),
                             "\n  expected one process, which is rank 0 of NGPU ranks: start sfsdp train without a "
                             "launcher"));
  const char* name = variable("NGPU") ? "NGPU" : "WORLD_SIZE";
  const char* text = variable(name);
  if (!text) return 1;
  const auto ranks = parse_int(text);
  if (!ranks || *ranks < 1 || *ranks > kMost)
    throw UserError(concat("comm.mode = fake_backend with ", name, " = ", quote_safe(text),
                           "\n  expected a number of ranks from 1 to ", kMost,
                           " in NGPU, or else WORLD_SIZE; they are environment variables"));
  return *ranks;
}

}  // namespace sfsdp::train
