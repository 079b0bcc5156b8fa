// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/tcp/store_client.h"

#include "sfsdp/base/check.h"
#include "sfsdp/comm/tcp/store_wire.h"

namespace sfsdp::comm {
namespace {

FrameWriter request(StoreOp op, const std::string& key) {
  SFSDP_CHECK(key.size() <= kMostKeyBytes, "a key of ", key.size(), " bytes");
  FrameWriter writer;
  writer.number(static_cast<uint8_t>(op)).text(key);
  return writer;
}

std::string value_of(const std::string& value) { return value.substr(0, kMostValueBytes); }

}  // namespace

StoreClient::StoreClient(const Address& store, const JobToken& token, int rank, Purpose purpose,
                         Clock::time_point deadline)
    : fd_(connect_and_greet(store, token, {purpose, rank, 0}, deadline)) {}

std::string StoreClient::ask(const std::string& frame, int64_t patience_ms) {
  const std::lock_guard lock(mutex_);
  if (lost_) throw SocketError("the connection is lost");
  try {
    const auto deadline = Clock::now() + std::chrono::milliseconds(patience_ms);
    send_all(fd_.get(), std::as_bytes(std::span(frame)), deadline);
    uint32_t size = 0;
    receive_all(fd_.get(), std::as_writable_bytes(std::span(&size, 1)), deadline);
    if (size > kMostAnswerBytes) throw SocketError("an answer of the store is too long");
    std::string answer(size, '\0');
    receive_all(fd_.get(), std::as_writable_bytes(std::span(answer)), deadline);
    return answer;
  } catch (const SocketError&) {
    lost_ = true;  // an answer that comes too late must not be taken for the next one
    interrupt();
    throw;
  }
}

void StoreClient::interrupt() { ::shutdown(fd_.get(), SHUT_RDWR); }

void StoreClient::set(const std::string& key, const std::string& value, Patience patience) {
  ask(request(StoreOp::Set, key).text(value_of(value)).frame(), patience_ms(patience));
}

std::string StoreClient::set_first(const std::string& key, const std::string& value, Patience patience) {
  const std::string answer = ask(request(StoreOp::SetFirst, key).text(value_of(value)).frame(), patience_ms(patience));
  return FrameReader(answer).text(kMostValueBytes);
}

std::optional<Store::Value> StoreClient::get(const std::string& key) {
  return found_in(ask(request(StoreOp::Get, key).frame(), kLookPatienceMs));
}

std::vector<std::optional<std::string>> StoreClient::collect(const std::string& prefix, const std::vector<int>& numbers,
                                                             int64_t wait_ms) {
  FrameWriter writer = request(StoreOp::Collect, prefix);
  writer.number(wait_ms).number(static_cast<uint32_t>(numbers.size()));
  for (const int number : numbers) writer.number(static_cast<uint32_t>(number));
  const std::string answer = ask(writer.frame(), kPatienceMs + wait_ms);
  FrameReader reader(answer);
  reader.number<uint8_t>();
  std::vector<std::optional<std::string>> values;
  for (size_t i = 0; i < numbers.size(); ++i)
    values.push_back(reader.number<uint8_t>() == 0 ? std::nullopt : std::optional(reader.text(kMostValueBytes)));
  return values;
}

}  // namespace sfsdp::comm
