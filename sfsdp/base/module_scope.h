// SPDX-License-Identifier: BSD-3-Clause
// The module that runs, said by the model itself. torch::nn has no forward hooks: without it capture takes an op to stand
// where the last parameter that was read lives.
#pragma once

#include <string>

namespace sfsdp {

// For the lifetime of the object and this thread; the innermost counts.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& path) : outer_(current_) { current_ = &path; }
  ~ModuleScope() { current_ = outer_; }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  // nullptr: no module says so.
  static const std::string* current() { return current_; }

 private:
  static inline thread_local const std::string* current_ = nullptr;
  const std::string* outer_;
};

}  // namespace sfsdp
