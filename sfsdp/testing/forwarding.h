// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "sfsdp/comm/communicator.h"

namespace sfsdp::testing {

// A communicator that hands each call to another one: what a test's own kind derives from.
class Forwarding : public comm::Communicator {
 public:
  explicit Forwarding(std::shared_ptr<comm::Communicator> ranks) : ranks_(std::move(ranks)) {}
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  const std::string& name() const override { return ranks_->name(); }
  void abort(const std::string& reason) override { ranks_->abort(reason); }

 protected:
  void run_checked(const comm::Call& call, std::span<const std::byte> in, std::span<std::byte> out) override {
    ranks_->run(call, in, out);
  }

 private:
  std::shared_ptr<comm::Communicator> ranks_;
};

}  // namespace sfsdp::testing
