// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train {
namespace {

constexpr size_t kFilePiece = 256 << 10;

FileStamp stamp_of(const struct stat& status) {
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec};
}

[[noreturn]] void fail(const std::string& path, const std::string& got, const std::string& expected) {
  throw UserError(concat(path, ": ", got, "\n  expected ", expected));
}

// Bytes that come in are `in`, of which a call takes some from the front; what comes out is appended to `out`'s front.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Returns how many bytes it wrote.
  virtual size_t decode(std::span<const char>& in, std::span<char> out, const std::string& path) = 0;
  virtual bool is_between_members() const = 0;  // the input may end here
};

class GzipDecoder : public Decoder {
 public:
  GzipDecoder() {
    constexpr int kGzipAlone = 15 + 16;
    if (inflateInit2(&stream_, kGzipAlone) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  size_t decode(std::span<const char>& in, std::span<char> out, const std::string& path) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    if (is_done_ && !in.empty()) {  // a file may hold several members, one after the other
      inflateReset(&stream_);
      is_done_ = false;
    }
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      fail(path, concat("damaged gzip data: ", stream_.msg ? stream_.msg : "no message"), "a gzip file; make it again");
    is_done_ = status == Z_STREAM_END;
    in = in.last(stream_.avail_in);
    return out.size() - stream_.avail_out;
  }
  bool is_between_members() const override { return is_done_; }

 private:
  z_stream stream_{};
  bool is_done_ = false;
};

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
  }

  size_t decode(std::span<const char>& in, std::span<char> out, const std::string& path) override {
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    ZSTD_outBuffer to = {out.data(), out.size(), 0};
    const size_t hint = ZSTD_decompressStream(stream_.get(), &to, &from);
    if (ZSTD_isError(hint))
      fail(path, concat("damaged zstd data: ", ZSTD_getErrorName(hint)), "a zstd file; make it again");
    is_done_ = hint == 0;
    in = in.subspan(from.pos);
    return to.pos;
  }
  bool is_between_members() const override { return is_done_; }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  bool is_done_ = false;
};

}  // namespace

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return stamp_of(status);
}

struct InputFile::State {
  std::string path;
  int fd = -1;
  int64_t bytes_read = 0;
  std::unique_ptr<Decoder> decoder;  // none: a plain file
  std::vector<char> buffer;          // compressed bytes
  std::span<const char> waiting;     // of buffer, not yet decoded
  bool ended = false;

  State() = default;
  ~State() {
    if (fd >= 0) ::close(fd);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  size_t read_file(std::span<char> out) {
    ssize_t got = 0;
    do got = ::read(fd, out.data(), out.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) fail(path, concat("cannot be read: ", std::strerror(errno)), "a file that can be read");
    bytes_read += got;
    return static_cast<size_t>(got);
  }

  size_t read_decoded(std::span<char> out) {
    while (true) {
      if (waiting.empty() && !ended) {
        const size_t got = read_file(buffer);
        waiting = std::span<const char>(buffer).first(got);
        ended = got == 0;
      }
      if (ended && waiting.empty() && (decoder->is_between_members() || bytes_read == 0)) return 0;
      const size_t waited = waiting.size();
      const size_t wrote = decoder->decode(waiting, out, path);
      if (wrote > 0) return wrote;
      if (ended && waiting.size() == waited && !(waiting.empty() && decoder->is_between_members()))
        fail(path, "the compressed data ends in the middle", "a whole file; copy or make it again");
    }
  }
};

InputFile::InputFile(const std::string& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block us
  if (state_->fd < 0) fail(path, concat("cannot be opened: ", std::strerror(errno)), "a file that can be read");
  struct stat status {};
  if (::fstat(state_->fd, &status) != 0 || !S_ISREG(status.st_mode)) fail(path, "is no regular file", "a file");
  if (path.ends_with(".gz")) state_->decoder = std::make_unique<GzipDecoder>();
  if (path.ends_with(".zst")) state_->decoder = std::make_unique<ZstdDecoder>();
  if (state_->decoder) state_->buffer.resize(kFilePiece);
}

InputFile::~InputFile() = default;
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile& InputFile::operator=(InputFile&&) noexcept = default;

size_t InputFile::read(std::span<char> out) {
  SFSDP_CHECK(!out.empty(), "no room");
  return state_->decoder ? state_->read_decoded(out.first(std::min<size_t>(out.size(), 1 << 30)))
                         : state_->read_file(out);
}

FileStamp InputFile::stamp() const {
  struct stat status {};
  if (::fstat(state_->fd, &status) != 0)
    fail(state_->path, concat("cannot be read: ", std::strerror(errno)), "a file that can be read");
  return stamp_of(status);
}
int64_t InputFile::bytes_read() const { return state_->bytes_read; }

std::string InputFile::name_without_compression(const std::string& path) {
  for (const std::string_view end : {".gz", ".zst"})
    if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
  return path;
}

}  // namespace sfsdp::train
