// SPDX-License-Identifier: BSD-3-Clause
// torch.autocast("cpu") as a part of a graph has it: while it is on, an op takes its tensors in a lower precision, in
// float32, or in the widest dtype of them, by a list. LibTorch's own casts tensors that lie on a CPU, and nothing where a
// step is captured, on tensors without numbers; this one casts both.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace sfsdp::models {

enum class AutocastPolicy : uint8_t { Lower, Float32, Widest };

// What autocast does to an op, by its name and overload, as in "aten::conv2d.padding"; nullopt: it takes what it gets.
// Source: aten/src/ATen/autocast_mode.cpp, the kernels for AutocastCPU; "Autocast Op Reference" of PyTorch's documentation.
std::optional<AutocastPolicy> autocast_policy(std::string_view op);

// While one lives, autocast is on or off in this thread; they nest. A parameter in float32 is cast to the lower precision once, until
// the outermost one ends, as by default in PyTorch: torch.export writes cache_enabled=False for any region, so that an archive
// does not say what the model had.
class Autocast {
 public:
  // lower: the lower precision; nullopt: that of the one around it, else bfloat16
  explicit Autocast(bool on, std::optional<c10::ScalarType> lower = std::nullopt);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // The innermost one, for its kernels.
  static Autocast& current();
  c10::ScalarType lower() const { return lower_; }
  at::Tensor cast(const at::Tensor& tensor, c10::ScalarType dtype);

 private:
  using Casts = std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>>;  // from and to

  Autocast* const outer_;
  const bool on_, was_on_;
  const c10::ScalarType lower_;
  Casts own_casts_;
  Casts& casts_;  // of the outermost one
};

}  // namespace sfsdp::models
