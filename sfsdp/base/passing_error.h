// SPDX-License-Identifier: BSD-3-Clause
// A fault that may be gone at the next try, of what was given rightly: a disk's, or a lock that another process holds. A
// rank that ends by it is worth starting again, kExitFailed and not kExitUserError.
#pragma once

#include <cerrno>

#include "sfsdp/base/error.h"

namespace sfsdp {

class PassingError : public UserError {
 public:
  using UserError::UserError;
};

// True for errors of the system that time may mend and no change of ours can: those of disks, of file systems over a network,
// and of resources that others have used up.
inline bool may_pass(int error) {
  switch (error) {
    case EIO:
    case EREMOTEIO:
    case ENOSPC:
    case EDQUOT:
    case ESTALE:
    case ETIMEDOUT:
    case ENOTCONN:
    case ESHUTDOWN:
    case EAGAIN:
    case EBUSY:
    case ENOLCK:
    case ENFILE:
    case ENOMEM: return true;
    default: return false;
  }
}

}  // namespace sfsdp
