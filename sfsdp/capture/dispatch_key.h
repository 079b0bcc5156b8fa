// SPDX-License-Identifier: BSD-3-Clause
// The one dispatch key that the tracer hooks: below autograd, above the backends.
#pragma once

#include <c10/core/DispatchKey.h>

namespace sfsdp::capture {

// No LibTorch up to 2.15 registers a fallback on it; tracer.cc registers per operator should one appear.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::Fake;

}  // namespace sfsdp::capture
