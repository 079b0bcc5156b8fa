// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/sample_inputs.h"

#include <cstring>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/zip_writer.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::exported {
namespace {

const char* storage_class(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::f64: return "DoubleStorage";
    case ir::DType::f32: return "FloatStorage";
    case ir::DType::bf16: return "BFloat16Storage";
    case ir::DType::f16: return "HalfStorage";
    case ir::DType::f8e4m3: return "Float8_e4m3fnStorage";
    case ir::DType::f8e5m2: return "Float8_e5m2Storage";
    case ir::DType::c64: return "ComplexFloatStorage";
    case ir::DType::i64: return "LongStorage";
    case ir::DType::i32: return "IntStorage";
    case ir::DType::i16: return "ShortStorage";
    case ir::DType::i8: return "CharStorage";
    case ir::DType::u8: return "ByteStorage";
    case ir::DType::b1: return "BoolStorage";
  }
  SFSDP_CHECK(false, "dtype ", static_cast<int>(dtype));
  return "";
}

// Pickle's opcodes, those that are needed here.
class Pickle {
 public:
  Pickle() : out_("\x80\x02") {}
  void global(std::string_view module, std::string_view name) { out_ += concat("c", module, "\n", name, "\n"); }
  void text(std::string_view text) {
    out_ += 'X';
    put(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  void number(int64_t value) {
    out_ += std::string_view("\x8a\x08", 2);  // an integer of eight bytes
    put(value);
  }
  void numbers(std::span<const int64_t> values) {
    mark();
    for (const int64_t value : values) number(value);
    tuple();
  }
  void mark() { out_ += '('; }
  void tuple() { out_ += 't'; }  // of what stands above the mark
  void no() { out_ += '\x89'; }
  void empty_tuple() { out_ += ')'; }
  void empty_dict() { out_ += '}'; }
  void call() { out_ += 'R'; }  // the function below the tuple of its arguments
  void persistent() { out_ += 'Q'; }
  std::string end() { return std::move(out_ += '.'); }

 private:
  template <class Number>
  void put(Number value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  std::string out_;
};

void put_tensor(Pickle& pickle, const SampleInput& input, size_t place) {
  const ir::Type type = ir::Type::tensor(input.dtype, input.sizes);
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  pickle.global("torch", storage_class(input.dtype));
  pickle.text(std::to_string(place));
  pickle.text("cpu");
  pickle.number(type.numel());
  pickle.tuple();
  pickle.persistent();
  pickle.number(0);
  pickle.numbers(input.sizes);
  pickle.numbers(ir::strides_of(type));
  pickle.no();  // no gradient
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.call();
  pickle.tuple();
  pickle.call();
}

}  // namespace

std::string sample_inputs_file(std::span<const SampleInput> inputs) {
  Pickle pickle;
  pickle.mark();
  pickle.mark();
  for (size_t i = 0; i < inputs.size(); ++i) put_tensor(pickle, inputs[i], i);
  pickle.tuple();
  pickle.empty_dict();
  pickle.tuple();
  return zip_in_memory([&](ZipWriter& zip) {
    zip.add("model/data.pkl", pickle.end());
    zip.add("model/byteorder", "little");
    for (size_t i = 0; i < inputs.size(); ++i)
      zip.add(concat("model/data/", i),
              std::string(static_cast<size_t>(ir::Type::tensor(inputs[i].dtype, inputs[i].sizes).bytes()), '\0'));
    zip.add("model/version", "3\n");
  });
}

}  // namespace sfsdp::exported
