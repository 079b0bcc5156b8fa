// SPDX-License-Identifier: BSD-3-Clause
// All starts that one launcher makes of a group of ranks are one launch. checkpoint.load_step and exclude_from_loading
// hold for the first of them: the others go on from what the launch has saved.
#pragma once

#include <string>

namespace sfsdp::train::checkpoint {

struct Launch {
  std::string id;          // the launcher's, the same for all its starts; "": it gives none that is its own
  bool restarted = false;  // this is not its first start
};

// From TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT, as `sfsdp launch` and torchrun set them. torchrun's "none" is
// what every run has that was given no --rdzv-id: no id.
Launch launch_from_environment();

}  // namespace sfsdp::train::checkpoint
