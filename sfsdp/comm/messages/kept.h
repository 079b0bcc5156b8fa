// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

namespace sfsdp::comm {

// Memory that a transport may use until the process ends, as it could not take back a message: it reads or writes there when a peer
// goes on that was stopped or cut off, and nobody says when. From any thread.
void keep_for_ever(std::shared_ptr<void> memory);

}  // namespace sfsdp::comm
