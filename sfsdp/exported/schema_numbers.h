// SPDX-License-Identifier: BSD-3-Clause
// What numbers in an archive's JSON stand for.
// Source: torch/_export/serde/schema.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "sfsdp/exported/program.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::exported {

struct DTypeRow {
  int64_t number;
  const char* name;
  std::optional<ir::DType> dtype;
};

// ScalarType.
inline constexpr std::array<DTypeRow, 21> kDTypes = {{{1, "BYTE", ir::DType::u8},
                                                      {2, "CHAR", ir::DType::i8},
                                                      {3, "SHORT", ir::DType::i16},
                                                      {4, "INT", ir::DType::i32},
                                                      {5, "LONG", ir::DType::i64},
                                                      {6, "HALF", ir::DType::f16},
                                                      {7, "FLOAT", ir::DType::f32},
                                                      {8, "DOUBLE", ir::DType::f64},
                                                      {9, "COMPLEXHALF", std::nullopt},
                                                      {10, "COMPLEXFLOAT", ir::DType::c64},
                                                      {11, "COMPLEXDOUBLE", std::nullopt},
                                                      {12, "BOOL", ir::DType::b1},
                                                      {13, "BFLOAT16", ir::DType::bf16},
                                                      {28, "UINT16", std::nullopt},
                                                      {29, "FLOAT8E4M3FN", ir::DType::f8e4m3},
                                                      {30, "FLOAT8E5M2", ir::DType::f8e5m2},
                                                      {31, "FLOAT8E4M3FNUZ", std::nullopt},
                                                      {32, "FLOAT8E5M2FNUZ", std::nullopt},
                                                      {33, "FLOAT8E8M0FNU", std::nullopt},
                                                      {34, "UINT32", std::nullopt},
                                                      {35, "UINT64", std::nullopt}}};

// MemoryFormat, from 1 on.
inline constexpr std::array kMemoryFormats = {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast,
                                              MemoryFormat::ChannelsLast3d, MemoryFormat::Preserve};

inline constexpr int64_t kStrided = 7;  // of Layout, the one that is read and written

}  // namespace sfsdp::exported
