// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/openblas.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::exec {
namespace {

constexpr const char* kFile = "libopenblas.so.0";
// What it calls in LibTorch's libraries, which export MKL's, it is to find in itself. AddressSanitizer refuses such libraries.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kHow = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// A variable of the environment, as long as this lives; null: none.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Setting() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#else
  return false;
#endif
}

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

std::string text_of(void* library, const char* name) {
  const auto get = symbol<const char* (*)()>(library, name);
  const char* text = get ? get() : nullptr;
  return text ? text : "";
}

//   core_type: null: its own choice
void* open(const char* file, const char* core_type) {
  const Setting core("OPENBLAS_CORETYPE", core_type), threads("OPENBLAS_NUM_THREADS", "1");
  return dlopen(file, kHow);
}

void* open_for_this_processor(const char* file) {
  void* library = open(file, nullptr);
  if (!library || !has_avx512()) return library;
  const std::string core = text_of(library, "openblas_get_corename");
  if (core != "Haswell" && core != "Zen") return library;
  dlclose(library);
  return open(file, "SkylakeX");
}

// A matrix as BLAS takes it.
struct Operand {
  at::Tensor tensor;
  int transposed = 111;  // CblasNoTrans
  int64_t leading = 1;

  explicit Operand(const at::Tensor& given) : tensor(given.is_neg() ? given.resolve_neg() : given) {
    if (set()) return;
    tensor = tensor.contiguous();
    SFSDP_CHECK(set(), "a matrix of ", tensor.sizes());
  }
  int64_t by_row() const { return transposed == 111 ? leading : 1; }
  int64_t by_column() const { return transposed == 111 ? 1 : leading; }

 private:
  bool set() {
    const int64_t rows = tensor.size(0), columns = tensor.size(1);
    const auto fits = [](int64_t outer, int64_t inner, int64_t outer_stride, int64_t inner_stride) {
      return (inner <= 1 || inner_stride == 1) && (outer <= 1 || outer_stride >= std::max<int64_t>(inner, 1));
    };
    if (fits(rows, columns, tensor.stride(0), tensor.stride(1))) {
      transposed = 111;
      leading = rows <= 1 ? std::max<int64_t>(columns, 1) : tensor.stride(0);
      return true;
    }
    if (!fits(columns, rows, tensor.stride(1), tensor.stride(0))) return false;
    transposed = 112;  // CblasTrans
    leading = columns <= 1 ? std::max<int64_t>(rows, 1) : tensor.stride(1);
    return true;
  }
};

bool is_int(int64_t size) { return size <= std::numeric_limits<int>::max(); }

// The ranges of rows and columns of the result that threads compute, the larger of both cut, in steps of 16 elements.
template <class Body>
void share_out(int64_t m, int64_t n, int64_t k, const Body& body) {
  constexpr int64_t kStep = 16, kSmall = int64_t{1} << 18;  // multiplications that are not worth waking a thread
  const int64_t longer = std::max(m, n), steps = (longer + kStep - 1) / kStep;
  const int64_t threads = m * n <= kSmall / std::max<int64_t>(k, 1) ? 1 : at::get_num_threads();
  const int64_t parts = std::clamp<int64_t>(steps, 1, std::max<int64_t>(threads, 1));
  const auto edge = [&](int64_t part) { return std::min(steps * part / parts * kStep, longer); };
  const auto compute = [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t from = edge(part), to = part + 1 == parts ? longer : edge(part + 1);
      if (m >= n)
        body(from, to, int64_t{0}, n);
      else
        body(int64_t{0}, m, from, to);
    }
  };
  if (parts == 1)
    compute(0, 1);
  else
    at::parallel_for(0, parts, 1, compute);
}

template <class T, class Gemm>
void run(Gemm gemm, const Operand& a, const Operand& b, const at::Tensor& out, double beta) {
  constexpr int kRowMajor = 101;
  const int64_t m = out.size(0), n = out.size(1), k = a.tensor.size(1);
  const T* left = a.tensor.const_data_ptr<T>();
  const T* right = b.tensor.const_data_ptr<T>();
  T* result = out.mutable_data_ptr<T>();
  share_out(m, n, k, [&](int64_t top, int64_t bottom, int64_t first, int64_t last) {
    gemm(kRowMajor, a.transposed, b.transposed, static_cast<int>(bottom - top), static_cast<int>(last - first),
         static_cast<int>(k), T{1}, left + top * a.by_row(), static_cast<int>(a.leading), right + first * b.by_column(),
         static_cast<int>(b.leading), static_cast<T>(beta), result + top * n + first, static_cast<int>(n));
  });
}

}  // namespace

const OpenBlas* OpenBlas::load(const char* file) {
  if (void* loaded = dlopen(file, RTLD_NOW | RTLD_NOLOAD)) {
    dlclose(loaded);
    return nullptr;
  }
  void* library = open_for_this_processor(file);
  if (!library) return nullptr;
  auto found = std::make_unique<OpenBlas>();
  found->sgemm_ = symbol<Sgemm>(library, "cblas_sgemm");
  found->dgemm_ = symbol<Dgemm>(library, "cblas_dgemm");
  const auto set_threads = symbol<void (*)(int)>(library, "openblas_set_num_threads");
  if (!found->sgemm_ || !found->dgemm_ || !set_threads) {
    dlclose(library);
    return nullptr;
  }
  set_threads(1);
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
  const std::vector<std::string> words = split(text_of(library, "openblas_get_config"), ' ');
  found->version_ =
      concat(words.size() > 1 ? words[1] : "of no version", ' ', text_of(library, "openblas_get_corename"));
  return found.release();  // as the library, it stays
}

const OpenBlas* OpenBlas::find() {
  static const OpenBlas* const found = load(kFile);
  return found;
}

void OpenBlas::multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, double beta) const {
  SFSDP_CHECK(a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && out.is_contiguous() && a.size(1) == b.size(0) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(1),
              a.sizes(), " by ", b.sizes(), " into ", out.sizes());
  SFSDP_CHECK(a.scalar_type() == out.scalar_type() && b.scalar_type() == out.scalar_type(), "products of one dtype");
  if (out.numel() == 0) return;
  const Operand left(a), right(b);
  if (a.size(1) == 0) {
    beta == 0 ? out.zero_() : out.mul_(beta);
  } else if (!is_int(a.size(0)) || !is_int(a.size(1)) || !is_int(b.size(1)) || !is_int(left.leading) ||
             !is_int(right.leading)) {  // its sizes are of 32 bits
    at::Tensor place = out;
    beta == 0 ? at::mm_out(place, a, b) : at::addmm_out(place, out, a, b, beta);
  } else if (out.scalar_type() == at::kDouble) {
    run<double>(dgemm_, left, right, out, beta);
  } else {
    run<float>(sgemm_, left, right, out, beta);
  }
}

}  // namespace sfsdp::exec
