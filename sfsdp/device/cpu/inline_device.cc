// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/cpu/inline_device.h"

namespace sfsdp::device {
namespace {

class InlineDevice final : public Device {
 public:
  void issue(const Command& command, const Turn& turn) override {
    if (command.kind != Command::Launch) return;
    spend(command.kernel->spent());
    command.kernel->run(turn);
  }
  void wait(uint32_t /*event*/) override {}
  void synchronize() override {}
};

}  // namespace

std::unique_ptr<Device> make_inline_device() { return std::make_unique<InlineDevice>(); }

}  // namespace sfsdp::device
