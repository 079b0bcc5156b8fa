// SPDX-License-Identifier: BSD-3-Clause
// The two kinds of error a user can meet. A message holds what, where, expected and got, and what to do.
#pragma once

#include <stdexcept>

namespace sfsdp {

// A mistake in a config, file, mesh or model; the message says how to cure it.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A collective failed: a peer is lost, late, or disagrees. The message names rank, collective and cause.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sfsdp
