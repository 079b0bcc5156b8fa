// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <ostream>

#include "sfsdp/base/cores.h"
#include "sfsdp/capture/dispatch_key.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/job.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

// The CPU features that decide which kernels are fast.
std::string cpu_features() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, text;
  while (std::getline(info, line) && !line.starts_with("flags")) {
  }
  for (const char* feature : {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"})
    if ((line + " ").find(std::string(" ") + feature + " ") != std::string::npos)
      text += (text.empty() ? "" : " ") + std::string(feature);
  return text.empty() ? "none of avx2, avx512, amx" : text;
}

bool on_path(const char* program) {
  return std::system((std::string("command -v ") + program + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace

int run_doctor(const Request& request, std::ostream& out, std::ostream& err) {
  if (request.has("flight")) return run_flight(request, out, err);
  const int64_t memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  const std::string headers = train::libtorch_include_dir();
  const bool key_free = !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(capture::kTraceKey);
  out << "LibTorch     " << TORCH_VERSION << " (C++11 ABI " << _GLIBCXX_USE_CXX11_ABI << ")\n"
      << "headers      "
      << (headers.empty() ? "missing: dataset libtorch_headers needs training.dataset_path" : headers) << "\n"
      << "capture      " << (key_free ? "one fallback" : "one registration per op, the trace key is taken") << "\n"
      << "collectives  tcp, threads\n"
      << "cores        " << usable_cores() << "\n"
      << "cpu          " << cpu_features() << "\n"
      << "memory       " << train::bytes_text(memory) << "\n"
      << "compiler     " << (on_path("c++") ? "c++" : "missing: apt install g++ (fused kernels need it)") << "\n";
  return 0;
}

}  // namespace sfsdp::tools
