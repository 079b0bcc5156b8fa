// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/sha256.h"

#include <doctest/doctest.h>

#include <string>

namespace sfsdp {
namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string hex_of(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[std::to_integer<int>(b) >> 4], kDigits[std::to_integer<int>(b) & 15]};
  }
  return text;
}

// FIPS 180-4's examples, and lengths around the borders of a block; the latter from Python's hashlib.
TEST_CASE("sha256: published digests") {
  CHECK(hex_of(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex_of(sha256(bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex_of(sha256(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex_of(sha256(bytes(std::string(1'000'000, 'a')))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hex_of(sha256(bytes(std::string(55, 'x')))) ==
        "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  CHECK(hex_of(sha256(bytes(std::string(56, 'x')))) ==
        "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  CHECK(hex_of(sha256(bytes(std::string(63, 'x')))) ==
        "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  CHECK(hex_of(sha256(bytes(std::string(64, 'x')))) ==
        "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
}

// RFC 4231, test cases 1, 2 and 6.
TEST_CASE("sha256: published codes of HMAC") {
  CHECK(hex_of(hmac_sha256(bytes(std::string(20, '\x0b')), bytes("Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex_of(hmac_sha256(bytes("Jefe"), bytes("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex_of(hmac_sha256(bytes(std::string(131, '\xaa')),
                           bytes("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("sha256: equal_in_constant_time compares all bytes") {
  CHECK(equal_in_constant_time(bytes("abc"), bytes("abc")));
  CHECK_FALSE(equal_in_constant_time(bytes("abc"), bytes("abd")));
  CHECK_FALSE(equal_in_constant_time(bytes("abc"), bytes("xbc")));
  CHECK_FALSE(equal_in_constant_time(bytes("abc"), bytes("ab")));
  CHECK(equal_in_constant_time({}, {}));
}

}  // namespace
}  // namespace sfsdp
