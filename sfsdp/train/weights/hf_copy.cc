// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_copy.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {
namespace {

// Runs of rows that are sorted at a time: 24 bytes each, so rows of one element cost little memory too.
constexpr int64_t kMaxRuns = 65536;

// A matrix's rows and columns; a vector is one column.
struct Matrix {
  int64_t rows = 1, columns = 1;
};

Matrix matrix_of(const std::vector<int64_t>& shape) {
  Matrix m;
  if (!shape.empty()) m.rows = shape[0];
  for (size_t d = 1; d < shape.size(); ++d) m.columns *= shape[d];
  return m;
}

// A rectangle of the parameter: rows [row, row + rows), columns [column, column + columns).
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

// The range as at most three rectangles: the rest of a row, whole rows, the beginning of a row.
std::vector<Block> blocks_of(Chunk range, int64_t columns) {
  std::vector<Block> blocks;
  for (int64_t at = range.offset, end = range.offset + range.length; at < end;) {
    const int64_t row = at / columns, column = at % columns;
    if (column == 0 && end - at >= columns)
      blocks.push_back({row, (end - at) / columns, 0, columns});
    else
      blocks.push_back({row, 1, column, std::min(columns - column, end - at)});
    at += blocks.back().rows * blocks.back().columns;
  }
  return blocks;
}

// What `visit` returns, added up over pieces of these rectangles: as high as can be, of at most `capacity` elements.
template <class Visit>
int64_t sum_over_pieces(Chunk range, const Matrix& matrix, int64_t capacity, Visit visit) {
  int64_t sum = 0;
  for (const Block& block : blocks_of(range, matrix.columns)) {
    const int64_t rows = std::min(block.rows, capacity);
    const int64_t columns = std::min(block.columns, std::max<int64_t>(1, capacity / rows));
    for (int64_t r = 0; r < block.rows; r += rows)
      for (int64_t c = 0; c < block.columns; c += columns)
        sum += visit(Block{block.row + r, std::min(rows, block.rows - r), block.column + c,
                           std::min(columns, block.columns - c)});
  }
  return sum;
}

// Elements that are neighbours on both sides.
struct Run {
  int64_t ours = 0, theirs = 0, count = 0;
};

// One run per row of the range.
template <class Body>
void for_each_row(const HfTensor& tensor, const Matrix& matrix, Chunk range, const Body& body) {
  for (int64_t at = range.offset, end = range.offset + range.length; at < end;) {
    const int64_t row = at / matrix.columns, column = at % matrix.columns;
    const int64_t count = std::min(matrix.columns - column, end - at);
    body(Run{at, source_row(tensor, matrix.rows, row) * matrix.columns + column, count});
    at += count;
  }
}

size_t bytes_of(int64_t elements, ir::DType dtype) { return static_cast<size_t>(elements * ir::size_in_bytes(dtype)); }

// Elements [first, first + count) of what begins at element `origin`.
template <class Bytes>
Bytes part(Bytes bytes, int64_t origin, int64_t first, int64_t count, ir::DType dtype) {
  return bytes.subspan(bytes_of(first - origin, dtype), bytes_of(count, dtype));
}

void check_range(const std::vector<int64_t>& shape, Chunk range, size_t bytes, ir::DType dtype) {
  const Matrix m = matrix_of(shape);
  SFSDP_CHECK(range.offset >= 0 && range.length >= 0 && range.offset + range.length <= m.rows * m.columns, "elements ",
              range.offset, " + ", range.length, " of ", m.rows, " x ", m.columns);
  SFSDP_CHECK(bytes == bytes_of(range.length, dtype), bytes, " bytes for ", range.length, " elements of ",
              ir::to_string(dtype));
}

class Importer {
 public:
  Importer(Chunk range, const HfRead& read, ir::DType their_dtype, std::span<std::byte> staging,
           std::span<std::byte> ours, ir::DType our_dtype)
      : range_(range),
        read_(read),
        their_dtype_(their_dtype),
        staging_(staging),
        capacity_(static_cast<int64_t>(staging.size()) / ir::size_in_bytes(their_dtype)),
        ours_(ours),
        our_dtype_(our_dtype) {
    SFSDP_CHECK(capacity_ >= 1, "a staging buffer of ", staging.size(), " bytes");
  }

  int64_t copy(const Run& run) {
    if (our_dtype_ == their_dtype_) {
      fetch(run.theirs, part(ours_, range_.offset, run.ours, run.count, our_dtype_));
      return 0;
    }
    int64_t lost = 0;
    for (int64_t done = 0; done < run.count; done += capacity_) {
      const int64_t count = std::min(capacity_, run.count - done);
      const std::span<std::byte> staged = part(staging_, 0, 0, count, their_dtype_);
      fetch(run.theirs + done, staged);
      lost += convert_floats(staged, their_dtype_, part(ours_, range_.offset, run.ours + done, count, our_dtype_),
                             our_dtype_);
    }
    return lost;
  }

  // A column of ours is a stretch of theirs, and whole columns are neighbours there.
  int64_t transposed(const Matrix& matrix) {
    return sum_over_pieces(range_, matrix, capacity_,
                           [&](const Block& piece) { return copy_transposed(matrix, piece); });
  }

 private:
  void fetch(int64_t element, std::span<std::byte> out) { read_(bytes_of(element, their_dtype_), out); }

  int64_t copy_transposed(const Matrix& matrix, const Block& b) {
    const int64_t first = b.column * matrix.rows + b.row;
    if (b.rows == matrix.rows)
      fetch(first, part(staging_, 0, 0, b.rows * b.columns, their_dtype_));
    else
      for (int64_t c = 0; c < b.columns; ++c)
        fetch(first + c * matrix.rows, part(staging_, 0, c * b.rows, b.rows, their_dtype_));
    const int64_t written = (b.rows - 1) * matrix.columns + b.columns;
    return convert_transposed(
        part(staging_, 0, 0, b.rows * b.columns, their_dtype_), their_dtype_, b.rows, b.columns, b.rows,
        part(ours_, range_.offset, b.row * matrix.columns + b.column, written, our_dtype_), our_dtype_, matrix.columns);
  }

  Chunk range_;
  const HfRead& read_;
  ir::DType their_dtype_;
  std::span<std::byte> staging_;
  int64_t capacity_;  // elements of their dtype in the staging
  std::span<std::byte> ours_;
  ir::DType our_dtype_;
};

class Exporter {
 public:
  Exporter(Chunk range, std::span<const std::byte> ours, ir::DType our_dtype, ir::DType their_dtype,
           std::span<std::byte> staging, const HfSink& sink)
      : range_(range),
        ours_(ours),
        our_dtype_(our_dtype),
        their_dtype_(their_dtype),
        staging_(staging),
        capacity_(static_cast<int64_t>(staging.size()) / ir::size_in_bytes(their_dtype)),
        sink_(sink) {
    SFSDP_CHECK(capacity_ >= 1, "a staging buffer of ", staging.size(), " bytes");
  }

  int64_t in_order() {
    if (our_dtype_ == their_dtype_) {
      sink_(range_.offset, ours_);
      return 0;
    }
    int64_t lost = 0;
    for (int64_t at = range_.offset, end = at + range_.length; at < end;) {
      const int64_t count = std::min(capacity_, end - at);
      lost += stage({at, at, count}, 0);
      sink_(at, staging_.first(bytes_of(count, their_dtype_)));
      at += count;
    }
    return lost;
  }

  // Pieces of our order, each sorted into theirs: as pieces hold whole heads or more, stretches are a head or longer.
  int64_t permuted(const HfTensor& tensor, const Matrix& matrix) {
    int64_t lost = 0;
    std::vector<Run> runs;
    for (int64_t at = range_.offset, end = at + range_.length; at < end;) {
      const int64_t last_row = at / matrix.columns + kMaxRuns;
      const int64_t count = std::min({capacity_, end - at, last_row * matrix.columns - at});
      runs.clear();
      for_each_row(tensor, matrix, {at, count}, [&](const Run& run) { runs.push_back(run); });
      std::ranges::sort(runs, {}, &Run::theirs);
      lost += write_sorted(runs);
      at += count;
    }
    return lost;
  }

  // Pieces as high as can be: a column of ours is a stretch of theirs.
  int64_t transposed(const Matrix& matrix) {
    return sum_over_pieces(range_, matrix, capacity_,
                           [&](const Block& piece) { return write_transposed(matrix, piece); });
  }

 private:
  int64_t stage(const Run& run, int64_t at) {
    return convert_floats(part(ours_, range_.offset, run.ours, run.count, our_dtype_), our_dtype_,
                          part(staging_, 0, at, run.count, their_dtype_), their_dtype_);
  }

  int64_t write_sorted(const std::vector<Run>& runs) {
    int64_t lost = 0, at = 0;
    for (const Run& run : runs) {
      lost += stage(run, at);
      at += run.count;
    }
    at = 0;
    for (size_t i = 0; i < runs.size();) {
      int64_t count = 0;
      size_t next = i;
      while (next < runs.size() && runs[next].theirs == runs[i].theirs + count) count += runs[next++].count;
      sink_(runs[i].theirs, part(staging_, 0, at, count, their_dtype_));
      at += count;
      i = next;
    }
    return lost;
  }

  int64_t write_transposed(const Matrix& matrix, const Block& b) {
    const int64_t first = b.row * matrix.columns + b.column;
    const int64_t span = (b.rows - 1) * matrix.columns + b.columns;
    const int64_t lost =
        convert_transposed(part(ours_, range_.offset, first, span, our_dtype_), our_dtype_, matrix.columns, b.rows,
                           b.columns, staging_.first(bytes_of(b.rows * b.columns, their_dtype_)), their_dtype_, b.rows);
    if (b.rows == matrix.rows) {  // then the columns are neighbours
      sink_(b.column * matrix.rows, staging_.first(bytes_of(b.rows * b.columns, their_dtype_)));
      return lost;
    }
    for (int64_t c = 0; c < b.columns; ++c)
      sink_((b.column + c) * matrix.rows + b.row, part(staging_, 0, c * b.rows, b.rows, their_dtype_));
    return lost;
  }

  Chunk range_;
  std::span<const std::byte> ours_;
  ir::DType our_dtype_, their_dtype_;
  std::span<std::byte> staging_;
  int64_t capacity_;  // elements of their dtype in the staging
  const HfSink& sink_;
};

}  // namespace

std::vector<int64_t> hf_shape_of(const HfTensor& tensor, const std::vector<int64_t>& our_shape) {
  std::vector<int64_t> shape = our_shape;
  if (tensor.transform == HfTensor::Transpose) std::reverse(shape.begin(), shape.end());
  return shape;
}

int64_t copy_from_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, Chunk range, const HfRead& read,
                     ir::DType their_dtype, std::span<std::byte> staging, std::span<std::byte> ours,
                     ir::DType our_dtype) {
  check_range(our_shape, range, ours.size(), our_dtype);
  if (range.length == 0) return 0;
  Importer importer(range, read, their_dtype, staging, ours, our_dtype);
  if (tensor.transform == HfTensor::None) return importer.copy({range.offset, range.offset, range.length});
  const Matrix matrix = matrix_of(our_shape);
  if (tensor.transform == HfTensor::Transpose) return importer.transposed(matrix);
  int64_t lost = 0;
  for_each_row(tensor, matrix, range, [&](const Run& run) { lost += importer.copy(run); });
  return lost;
}

int64_t copy_to_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, Chunk range,
                   std::span<const std::byte> ours, ir::DType our_dtype, ir::DType their_dtype,
                   std::span<std::byte> staging, const HfSink& sink) {
  check_range(our_shape, range, ours.size(), our_dtype);
  if (range.length == 0) return 0;
  Exporter exporter(range, ours, our_dtype, their_dtype, staging, sink);
  if (tensor.transform == HfTensor::None) return exporter.in_order();
  if (tensor.transform == HfTensor::PermuteHeads) return exporter.permuted(tensor, matrix_of(our_shape));
  return exporter.transposed(matrix_of(our_shape));
}

}  // namespace sfsdp::train
