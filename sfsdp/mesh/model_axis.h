// SPDX-License-Identifier: BSD-3-Clause
// Which axes of a mesh cut the model, and not the batch.
#pragma once

#include <string_view>

namespace sfsdp {

// Cuts the sequence: each rank has its tokens of every sample. Parameters are sharded over it as over dp_shard.
constexpr bool is_sequence_axis(std::string_view axis) { return axis == "cp"; }

// Cuts the batch: each rank has its samples, and some of the experts of every mixture. Other parameters are sharded over it too.
constexpr bool is_expert_axis(std::string_view axis) { return axis == "ep"; }

// Cuts tokens, by samples or within them.
constexpr bool is_token_axis(std::string_view axis) { return is_sequence_axis(axis) || is_expert_axis(axis); }

// Cuts parameters: each rank has its box of them, at all times.
constexpr bool is_tensor_axis(std::string_view axis) { return axis == "tp"; }

// Ranks along a model axis have the same samples, and parts of each other's values. Along all others, data axes, each rank has
// its own batch.
constexpr bool is_model_axis(std::string_view axis) { return is_token_axis(axis) || is_tensor_axis(axis); }

}  // namespace sfsdp
