// SPDX-License-Identifier: BSD-3-Clause
// A part of an exported graph that is a graph itself: what ran under torch.no_grad, torch.autocast or checkpoint. For
// exported_call.cc.
#pragma once

#include <memory>

#include "sfsdp/models/exported/exported_call.h"

namespace sfsdp::models {

// null: `node` is no such part.
//   throws: UserError for arguments that such a node does not have, and for an autocast of another device than a CPU
std::unique_ptr<const ExportedCall> make_region(const exported::Node& node);

}  // namespace sfsdp::models
