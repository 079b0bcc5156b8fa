// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp {

namespace {

// Builds a JsonValue from the parser's events; nlohmann's own document type would keep the last of two equal keys.
class Builder {
 public:
  Builder(const std::string& file, const JsonLimits& limits) : file_(file), limits_(limits) {}

  bool null() { return add({JsonNull{}}); }
  bool boolean(bool value) { return add({value}); }
  bool number_integer(int64_t value) { return add({value}); }
  bool number_unsigned(uint64_t value) { return add({value}); }
  bool number_float(double value, const std::string& /*text*/) { return add({value}); }
  bool string(std::string& value) { return add({std::move(value)}); }
  bool binary(nlohmann::json::binary_t& /*value*/) { fail("binary value", "JSON text"); }
  bool start_object(size_t /*size*/) { return open({JsonObject{}}); }
  bool start_array(size_t /*size*/) { return open({JsonArray{}}); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!open_.back().keys.insert(name).second) fail("key " + quote_safe(name) + " twice in one object", "unique keys");
    open_.back().key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::json::exception& /*error*/) {
    fail(concat("invalid JSON near byte ", position, ", at ", quote_safe(last_token)), "a JSON document");
  }

  JsonValue take() {
    SFSDP_CHECK(open_.empty(), "unfinished JSON in ", file_);
    return std::move(root_);
  }

 private:
  struct Open {
    JsonValue value;
    std::set<std::string> keys;
    std::string key;  // of the member that comes next
  };

  [[noreturn]] void fail(const std::string& got, const std::string& expected) const {
    throw UserError("" + file_ + ": " + got + "\n  expected " + expected);
  }

  bool add(JsonValue value) {
    if (++count_ > limits_.max_values)
      fail("more values than we read", concat("at most ", limits_.max_values, " JSON values"));
    place(std::move(value));
    return true;
  }

  bool open(JsonValue value) {
    if (++count_ > limits_.max_values)
      fail("more values than we read", concat("at most ", limits_.max_values, " JSON values"));
    if (open_.size() >= static_cast<size_t>(limits_.max_depth))
      fail("nested too deep", concat("at most ", limits_.max_depth, " levels of objects and arrays"));
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    JsonValue value = std::move(open_.back().value);
    open_.pop_back();
    place(std::move(value));
    return true;
  }

  void place(JsonValue value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (auto* object = std::get_if<JsonObject>(&open_.back().value.value))
      object->emplace_back(std::move(open_.back().key), std::move(value));
    else
      std::get<JsonArray>(open_.back().value.value).push_back(std::move(value));
  }

  const std::string& file_;
  const JsonLimits limits_;
  size_t count_ = 0;
  std::vector<Open> open_;
  JsonValue root_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto* object = as<JsonObject>();
  if (!object) return nullptr;
  const auto found =
      std::find_if(object->begin(), object->end(), [&](const auto& member) { return member.first == key; });
  return found == object->end() ? nullptr : &found->second;
}

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length == 0 || length > text.size() - i) return false;
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      const unsigned low = j > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      const unsigned high = j > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) return false;
    }
    i += length;
  }
  return true;
}

JsonValue parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (!is_utf8(text)) throw UserError("" + file + ": the JSON text is not UTF-8\n  expected valid UTF-8");
  // nlohmann's reader takes a NUL for the end of the text and skips a byte order mark; both could hide something.
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t')
      throw UserError(
          concat(file, ": control byte ", static_cast<int>(c), " in the JSON text\n  expected ", "printable text"));
  if (text.substr(0, 3) == "\xef\xbb\xbf")
    throw UserError("" + file + ": starts with a byte order mark\n  expected JSON; remove the first 3 bytes");
  Builder builder(file, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);  // strict: nothing may follow the document
  return builder.take();
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  const auto fail = [&](const std::string& got) {
    throw UserError(concat(path, ": ", got, "\n  expected a regular file of at most ", max_bytes, " bytes"));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block us
  if (fd < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info {};
  std::string text;
  std::string error;
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    error = "is no regular file";
  } else {
    text.resize(std::min<size_t>(static_cast<size_t>(info.st_size), max_bytes) +
                1);  // one more shows that it is too long
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = ::read(fd, text.data() + done, text.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = std::string("cannot be read: ") + std::strerror(errno);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    if (error.empty() && done > max_bytes) error = "is too long";
    if (error.empty() && done == text.size()) error = "grew while it was read";
    text.resize(done);
  }
  ::close(fd);
  if (!error.empty()) fail(error);
  return text;
}

std::optional<double> as_real(const JsonValue& value) {
  if (const auto* number = value.as<double>()) return *number;
  if (const auto* number = value.as<uint64_t>()) return static_cast<double>(*number);
  if (const auto* number = value.as<int64_t>()) return static_cast<double>(*number);
  return std::nullopt;
}

std::string describe(const JsonValue& value) {
  if (value.as<JsonNull>()) return "null";
  if (const auto* flag = value.as<bool>()) return *flag ? "true" : "false";
  if (const auto* number = value.as<uint64_t>()) return std::to_string(*number);
  if (const auto* number = value.as<int64_t>()) return *number == 0 ? "-0" : std::to_string(*number);
  if (const auto* number = value.as<double>()) return shortest(*number);
  if (const auto* text = value.as<std::string>()) return quote_safe(*text);
  return value.as<JsonArray>() ? "an array" : "an object";
}

std::string quote_safe(std::string_view text) {
  constexpr size_t kLongest = 120;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace sfsdp
