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
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, const comm::CallInfo& info) override {
    ranks_->all_gather(in, out, info);
  }
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, ir::DType dtype, comm::ReduceOp op,
                      const comm::CallInfo& info) override {
    ranks_->reduce_scatter(in, out, dtype, op, info);
  }
  void all_reduce(std::span<std::byte> data, ir::DType dtype, comm::ReduceOp op, const comm::CallInfo& info) override {
    ranks_->all_reduce(data, dtype, op, info);
  }
  void broadcast(std::span<std::byte> data, int root, const comm::CallInfo& info) override {
    ranks_->broadcast(data, root, info);
  }
  void barrier(const comm::CallInfo& info) override { ranks_->barrier(info); }
  void abort(const std::string& reason) override { ranks_->abort(reason); }

 private:
  std::shared_ptr<comm::Communicator> ranks_;
};

}  // namespace sfsdp::testing
