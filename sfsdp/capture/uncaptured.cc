// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/uncaptured.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <initializer_list>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/meta_kernels.h"
#include "sfsdp/capture/meta_rules.h"

namespace sfsdp::capture {

std::string lacks_shape_function(const std::string& name, const std::string& overload) {
  using Key = c10::DispatchKey;
  register_meta_kernels();
  const auto find = [&](const std::string& of) { return c10::Dispatcher::singleton().findSchema({name, of}); };
  const auto has_any = [](const c10::OperatorHandle& op, std::initializer_list<Key> keys) {
    return std::ranges::any_of(keys, [&](Key key) { return op.hasKernelForDispatchKey(key); });
  };
  const auto op = find(overload);
  if (!op) return "";
  // They are composites of _fft_*.
  const bool transforms = name.starts_with("aten::fft_") || name == "aten::stft" || name == "aten::istft";
  const std::string reason = concat("has no shape function, so it cannot be captured\n  expected ",
                                    instead_of(transforms ? std::string("aten::_fft_") : name));
  if (transforms && name.find("freq") == std::string::npos && name.find("shift") == std::string::npos) return reason;
  if (has_any(*op, {Key::Meta, Key::CompositeImplicitAutograd})) return "";
  if (!has_any(*op, {Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional})) return reason;
  const auto out = find("out");  // which such a kernel may call
  const bool calls_kernel = out && overload.empty() &&
                            !has_any(*out, {Key::Meta, Key::CompositeImplicitAutograd, Key::CompositeExplicitAutograd,
                                            Key::CompositeExplicitAutogradNonFunctional});
  return calls_kernel ? reason : "";
}

}  // namespace sfsdp::capture
