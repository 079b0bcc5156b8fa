// SPDX-License-Identifier: BSD-3-Clause
// A shared pointer that can be read only where it has a name, so that what it points to lives as long as what was read of it:
// `f()->part` of a shared pointer that f made would be a part of something that is gone.
#pragma once

#include <memory>
#include <utility>

namespace sfsdp {

template <class T>
class Held {
 public:
  Held() = default;
  explicit Held(std::shared_ptr<T> pointer) : pointer_(std::move(pointer)) {}

  T* operator->() const& { return pointer_.get(); }
  T& operator*() const& { return *pointer_; }
  T* get() const& { return pointer_.get(); }
  T* operator->() const&& = delete;  // name it first: const auto kept = f();
  T& operator*() const&& = delete;
  T* get() const&& = delete;
  explicit operator bool() const { return pointer_ != nullptr; }

 private:
  std::shared_ptr<T> pointer_;
};

}  // namespace sfsdp
