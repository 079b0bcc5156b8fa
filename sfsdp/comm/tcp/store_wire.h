// SPDX-License-Identifier: BSD-3-Clause
// What the store's server and its clients say to each other, after the handshake: frames of a 4-byte length and as many
// bytes. All numbers little-endian, as the machines that sfsdp runs on are.
//
//   request: op, then                             answer
//     Set       key, value                         nothing
//     SetFirst  key, value                         value: what the key holds now
//     Get       key                                1, value, age in ms; or 0
//     Collect   prefix, ms, n, n numbers           1 as soon as prefix + number is there for all, else 0 after ms, or once
//                                                  "aborted" is set; then n times 1, value or 0
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sfsdp/comm/messages/store.h"
#include "sfsdp/comm/tcp/socket.h"

namespace sfsdp::comm {

enum class StoreOp : uint8_t { Set = 1, SetFirst = 2, Get = 3, Collect = 4 };

inline constexpr size_t kMostKeyBytes = 1 << 10;
inline constexpr size_t kMostValueBytes = 64 << 10;
// The largest frame to the server holds a key and a value, or the numbers of the largest world.
inline constexpr size_t kMostRequestBytes = 8 << 20;
inline constexpr size_t kMostAnswerBytes = 256 << 20;

class FrameWriter {
 public:
  template <class T>
  FrameWriter& number(T value) {
    static_assert(std::is_integral_v<T>);
    const auto* bytes = reinterpret_cast<const char*>(&value);
    frame_.append(bytes, sizeof value);
    return *this;
  }
  FrameWriter& text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    frame_.append(value);
    return *this;
  }
  // With the length in front.
  std::string frame() {
    const auto size = static_cast<uint32_t>(frame_.size() - sizeof(uint32_t));
    std::memcpy(frame_.data(), &size, sizeof size);
    return std::move(frame_);
  }

 private:
  std::string frame_ = std::string(sizeof(uint32_t), '\0');
};

// Reads what a peer has sent. Throws SocketError where it is cut off or a text is too long: nothing is allocated by a
// number that has not been compared with what is there.
class FrameReader {
 public:
  explicit FrameReader(std::string_view frame) : rest_(frame) {}
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(size_t most) {
    const auto size = number<uint32_t>();
    if (size > most) throw SocketError("a text in a message is too long");
    return std::string(take(size));
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view take(size_t size) {
    if (size > rest_.size()) throw SocketError("a message is cut off");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

// What an answer to Get says.
inline std::optional<Store::Value> found_in(std::string_view answer) {
  FrameReader reader(answer);
  if (reader.number<uint8_t>() == 0) return std::nullopt;
  Store::Value value;
  value.text = reader.text(kMostValueBytes);
  value.age_ms = reader.number<int64_t>();
  return value;
}

}  // namespace sfsdp::comm
