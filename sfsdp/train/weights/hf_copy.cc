// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_copy.h"

#include <algorithm>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/common_runs.h"
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

// What a box is of the matrix: elements are numbered in it, row by row.
struct Window {
  Matrix whole;
  Chunk rows, columns;

  bool is_as_wide() const { return columns.length == whole.columns; }
  // Where the element in this row and column of the window lies in the matrix, row by row, and column by column.
  int64_t place(int64_t row, int64_t column) const {
    return (rows.offset + row) * whole.columns + columns.offset + column;
  }
  int64_t transposed_place(int64_t row, int64_t column) const {
    return (columns.offset + column) * whole.rows + rows.offset + row;
  }
};

// None: of the columns the box has more than one stretch, as of a tensor that is cut in its third dimension, or of several blocks.
std::optional<Window> window_of(const std::vector<int64_t>& shape, const plan::Box& box) {
  const std::vector<Chunk>& dims = box.dims;
  const Matrix whole = matrix_of(shape);
  if (!box.block_shape.empty()) return std::nullopt;
  if (shape.empty()) return Window{whole, {0, 1}, {0, 1}};
  plan::Box inner{{dims.begin() + 1, dims.end()}, {}};
  inner.flat.length = plan::elements_of(inner.dims);
  const auto run = plan::CommonRuns(inner, plan::whole_box({shape.begin() + 1, shape.end()})).next();
  if (run && run->count < inner.flat.length) return std::nullopt;
  return Window{whole, dims[0], run ? Chunk{run->second, run->count} : Chunk{}};
}

// A rectangle of the window: rows [row, row + rows), columns [column, column + columns).
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
int64_t sum_over_pieces(Chunk range, const Window& window, int64_t capacity, Visit visit) {
  int64_t sum = 0;
  for (const Block& block : blocks_of(range, window.columns.length)) {
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
void for_each_row(const HfTensor& tensor, const Window& window, Chunk range, const Body& body) {
  for (int64_t at = range.offset, end = range.offset + range.length; at < end;) {
    const int64_t row = at / window.columns.length, column = at % window.columns.length;
    const int64_t count = std::min(window.columns.length - column, end - at);
    const int64_t theirs = source_row(tensor, window.whole.rows, window.rows.offset + row);
    body(Run{at, theirs * window.whole.columns + window.columns.offset + column, count});
    at += count;
  }
}

// The same where rows have one order on both sides: rows that lie side by side are one run.
template <class Body>
void for_each_run(const HfTensor& tensor, const Window& window, Chunk range, const Body& body) {
  if (window.is_as_wide())
    body(Run{range.offset, window.place(0, range.offset), range.length});
  else
    for_each_row(tensor, window, range, body);
}

size_t bytes_of(int64_t elements, ir::DType dtype) { return static_cast<size_t>(elements * ir::size_in_bytes(dtype)); }

// Elements [first, first + count) of what begins at element `origin`.
template <class Bytes>
Bytes part(Bytes bytes, int64_t origin, int64_t first, int64_t count, ir::DType dtype) {
  return bytes.subspan(bytes_of(first - origin, dtype), bytes_of(count, dtype));
}

void check_box(const std::vector<int64_t>& shape, const plan::Box& box, size_t bytes, ir::DType dtype) {
  const std::vector<int64_t>& of = box.block_shape.empty() ? shape : box.block_shape;
  SFSDP_CHECK(box.dims.size() == of.size(), box.dims.size(), " dimensions of ", of.size());
  for (size_t d = 0; d < of.size(); ++d)
    SFSDP_CHECK(box.dims[d].offset >= 0 && box.dims[d].length >= 0 && box.dims[d].offset + box.dims[d].length <= of[d],
                plan::to_string(box.dims), ", dimension ", d, " of ", of[d]);
  const Chunk range = box.flat;
  const int64_t numel = plan::elements_of(box.dims);
  SFSDP_CHECK(range.offset >= 0 && range.length >= 0 && range.offset + range.length <= numel, "elements ", range.offset,
              " + ", range.length, " of ", numel);
  SFSDP_CHECK(bytes == bytes_of(range.length, dtype), bytes, " bytes for ", range.length, " elements of ",
              ir::to_string(dtype));
}

// What `copy` returns, added up over the runs of a box that is no window: each is a range of the whole.
template <class Bytes, class Copy>
int64_t sum_over_runs(const std::vector<int64_t>& shape, const plan::Box& box, Bytes ours, ir::DType dtype,
                      const Copy& copy) {
  int64_t sum = 0;
  plan::for_each_run(box, plan::whole_beside(box, shape), [&](const plan::BoxRun& run) {
    sum +=
        copy(plan::whole_box(shape, {run.second, run.count}), part(ours, box.flat.offset, run.first, run.count, dtype));
  });
  return sum;
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
  int64_t transposed(const Window& window) {
    return sum_over_pieces(range_, window, capacity_,
                           [&](const Block& piece) { return copy_transposed(window, piece); });
  }

 private:
  void fetch(int64_t element, std::span<std::byte> out) { read_(bytes_of(element, their_dtype_), out); }

  int64_t copy_transposed(const Window& window, const Block& b) {
    const int64_t first = window.transposed_place(b.row, b.column), rows = window.whole.rows;
    if (b.rows == rows)
      fetch(first, part(staging_, 0, 0, b.rows * b.columns, their_dtype_));
    else
      for (int64_t c = 0; c < b.columns; ++c)
        fetch(first + c * rows, part(staging_, 0, c * b.rows, b.rows, their_dtype_));
    const int64_t stride = window.columns.length, written = (b.rows - 1) * stride + b.columns;
    return convert_transposed(part(staging_, 0, 0, b.rows * b.columns, their_dtype_), their_dtype_, b.rows, b.columns,
                              b.rows, part(ours_, range_.offset, b.row * stride + b.column, written, our_dtype_),
                              our_dtype_, stride);
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

  int64_t copy(const Run& run) {
    if (our_dtype_ == their_dtype_) {
      sink_(run.theirs, part(ours_, range_.offset, run.ours, run.count, our_dtype_));
      return 0;
    }
    int64_t lost = 0;
    for (int64_t done = 0; done < run.count; done += capacity_) {
      const int64_t count = std::min(capacity_, run.count - done);
      lost += stage({run.ours + done, 0, count}, 0);
      sink_(run.theirs + done, staging_.first(bytes_of(count, their_dtype_)));
    }
    return lost;
  }

  // Pieces of our order, each sorted into theirs: as pieces hold whole heads or more, stretches are a head or longer.
  int64_t permuted(const HfTensor& tensor, const Window& window) {
    int64_t lost = 0;
    std::vector<Run> runs;
    for (int64_t at = range_.offset, end = at + range_.length; at < end;) {
      const int64_t last_row = at / window.columns.length + kMaxRuns;
      const int64_t count = std::min({capacity_, end - at, last_row * window.columns.length - at});
      runs.clear();
      for_each_row(tensor, window, {at, count}, [&](const Run& run) { runs.push_back(run); });
      std::ranges::sort(runs, {}, &Run::theirs);
      lost += write_sorted(runs);
      at += count;
    }
    return lost;
  }

  // Pieces as high as can be: a column of ours is a stretch of theirs.
  int64_t transposed(const Window& window) {
    return sum_over_pieces(range_, window, capacity_,
                           [&](const Block& piece) { return write_transposed(window, piece); });
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

  int64_t write_transposed(const Window& window, const Block& b) {
    const int64_t stride = window.columns.length, first = b.row * stride + b.column;
    const int64_t span = (b.rows - 1) * stride + b.columns;
    const int64_t lost =
        convert_transposed(part(ours_, range_.offset, first, span, our_dtype_), our_dtype_, stride, b.rows, b.columns,
                           staging_.first(bytes_of(b.rows * b.columns, their_dtype_)), their_dtype_, b.rows);
    if (b.rows == window.whole.rows) {  // then the columns are neighbours
      sink_(window.transposed_place(0, b.column), staging_.first(bytes_of(b.rows * b.columns, their_dtype_)));
      return lost;
    }
    for (int64_t c = 0; c < b.columns; ++c)
      sink_(window.transposed_place(b.row, b.column + c), part(staging_, 0, c * b.rows, b.rows, their_dtype_));
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

SlicePart part_of_slice(const plan::Box& box, int64_t slice) {
  SFSDP_CHECK(!box.dims.empty(), "a number has no slices");
  SlicePart part{{{box.dims.begin() + 1, box.dims.end()}, {}}, {box.flat.offset, 0}};
  if (!box.block_shape.empty()) part.box.block_shape.assign(box.block_shape.begin() + 1, box.block_shape.end());
  if (slice < box.dims[0].offset || slice >= box.dims[0].offset + box.dims[0].length) return part;
  const int64_t numel = plan::elements_of(part.box.dims), first = (slice - box.dims[0].offset) * numel;
  const int64_t begin = std::max(box.flat.offset, first);
  const int64_t end = std::min(box.flat.offset + box.flat.length, first + numel);
  if (begin >= end) return part;
  part.range = {begin, end - begin};
  part.box.flat = {begin - first, end - begin};
  return part;
}

int64_t copy_from_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, const plan::Box& box,
                     const HfRead& read, ir::DType their_dtype, std::span<std::byte> staging, std::span<std::byte> ours,
                     ir::DType our_dtype) {
  check_box(our_shape, box, ours.size(), our_dtype);
  if (box.flat.length == 0) return 0;
  const auto window = window_of(our_shape, box);
  if (!window)
    return sum_over_runs(our_shape, box, ours, our_dtype, [&](const plan::Box& run, std::span<std::byte> bytes) {
      return copy_from_hf(tensor, our_shape, run, read, their_dtype, staging, bytes, our_dtype);
    });
  Importer importer(box.flat, read, their_dtype, staging, ours, our_dtype);
  if (tensor.transform == HfTensor::Transpose) return importer.transposed(*window);
  int64_t lost = 0;
  const auto copy = [&](const Run& run) { lost += importer.copy(run); };
  if (tensor.transform == HfTensor::None)
    for_each_run(tensor, *window, box.flat, copy);
  else
    for_each_row(tensor, *window, box.flat, copy);
  return lost;
}

int64_t copy_to_hf(const HfTensor& tensor, const std::vector<int64_t>& our_shape, const plan::Box& box,
                   std::span<const std::byte> ours, ir::DType our_dtype, ir::DType their_dtype,
                   std::span<std::byte> staging, const HfSink& sink) {
  check_box(our_shape, box, ours.size(), our_dtype);
  if (box.flat.length == 0) return 0;
  const auto window = window_of(our_shape, box);
  if (!window)
    return sum_over_runs(our_shape, box, ours, our_dtype, [&](const plan::Box& run, std::span<const std::byte> bytes) {
      return copy_to_hf(tensor, our_shape, run, bytes, our_dtype, their_dtype, staging, sink);
    });
  Exporter exporter(box.flat, ours, our_dtype, their_dtype, staging, sink);
  if (tensor.transform == HfTensor::PermuteHeads) return exporter.permuted(tensor, *window);
  if (tensor.transform == HfTensor::Transpose) return exporter.transposed(*window);
  int64_t lost = 0;
  for_each_run(tensor, *window, box.flat, [&](const Run& run) { lost += exporter.copy(run); });
  return lost;
}

}  // namespace sfsdp::train
