// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/compare_traces.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "sfsdp/base/error.h"

namespace sfsdp::tools::compare_traces_test {
namespace {

const std::string kPredicted = R"({"traceEvents":[
{"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"dp_shard/0"}},
{"ph":"X","pid":0,"tid":0,"ts":0,"dur":1000,"name":"linear %a","cat":"fwd","args":{"module":"w1","bytes":4}},
{"ph":"X","pid":0,"tid":0,"ts":1000,"dur":500.5,"name":"wait for all_gather","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":0,"tid":1,"ts":0,"dur":900,"name":"all_gather","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":0,"tid":0,"ts":2000,"dur":2000,"name":"linear_dx %b","cat":"bwd","args":{"module":"w1"}},
{"ph":"C","pid":0,"name":"memory","ts":0,"args":{"state":1}}]})";

const std::string kMeasured = R"({"traceEvents":[
{"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"dp_shard"}},
{"ph":"M","pid":3,"tid":2,"name":"thread_name","args":{"name":"steps"}},
{"ph":"X","pid":3,"tid":0,"ts":0,"dur":1200,"name":"linear %a","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":3,"tid":0,"ts":0,"dur":0,"name":"start all_gather.start %g","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":3,"tid":1,"ts":0,"dur":100,"name":"all_gather.start %g","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":3,"tid":0,"ts":0,"dur":100,"name":"wait for all_gather.start %g","cat":"fwd","args":{"module":"w1"}},
{"ph":"X","pid":3,"tid":0,"ts":0,"dur":6000,"name":"linear_dx %b","cat":"bwd","args":{"module":"w1"}},
{"ph":"X","pid":3,"tid":0,"ts":0,"dur":800,"name":"adamw","cat":"opt","args":{"module":""}},
{"ph":"X","pid":3,"tid":2,"ts":0,"dur":8100,"name":"step 3","cat":"step","args":{"module":""}},
{"ph":"X","pid":3,"tid":2,"ts":0,"dur":1,"name":"step 4","cat":"step","args":{"module":""}}]})";

TEST_CASE("two traces are compared by section and module, a measured one by its mean step") {
  const TraceTimes predicted = times_of_trace(kPredicted, "p.json"), measured = times_of_trace(kMeasured, "m.json");
  CHECK(predicted.kernels_ms() == 3);
  CHECK(predicted.communication_ms == doctest::Approx(0.5005));
  CHECK(measured.kernels_ms() == 4);
  CHECK(measured.communication_ms == doctest::Approx(0.05));
  std::ostringstream out;
  print_comparison(predicted, measured, 2, out);
  CHECK(out.str() == R"(A step: 3.500 ms predicted, 4.050 measured (+15.7 %)
  kernels: 3.000 ms predicted, 4.000 measured (+33.3 %)
  communication that nothing hides: 0.500 ms predicted, 0.050 measured (-90.0 %)
  bwd: 2.000 ms predicted, 3.000 measured (+50.0 %)
  fwd: 1.000 ms predicted, 0.600 measured (-40.0 %)
  opt: 0.000 ms predicted, 0.400 measured
Where they part most:
  bwd w1: 2.000 ms predicted, 3.000 measured (+50.0 %)
  fwd w1: 1.000 ms predicted, 0.600 measured (-40.0 %)
)");
}

TEST_CASE("what is no trace of a step is refused") {
  CHECK_THROWS_AS(times_of_trace("{", "x.json"), UserError);
  CHECK_THROWS_WITH_AS(times_of_trace("{}", "x.json"), doctest::Contains("x.json: no traceEvents"), UserError);
  CHECK_THROWS_WITH_AS(times_of_trace(R"({"traceEvents":[]})", "x.json"), doctest::Contains("lane 0 is not there"),
                       UserError);
  CHECK_THROWS_WITH_AS(
      times_of_trace(R"({"traceEvents":[{"name":"thread_name","tid":0,"args":{"name":"GPU"}}]})", "x.json"),
      doctest::Contains("lane 0 is GPU"), UserError);
  CHECK_THROWS_WITH_AS(times_of_trace(R"({"traceEvents":[{"name":"thread_name","tid":0,"args":{"name":"compute"}},
                                       {"name":"thread_name","tid":1,"args":{"name":"steps"}}]})",
                                      "x.json"),
                       doctest::Contains("no step in it"), UserError);
  CHECK_THROWS_AS(times_of_trace(R"({"traceEvents":[{"name":"thread_name","tid":0}]})", "x.json"), UserError);
}

}  // namespace
}  // namespace sfsdp::tools::compare_traces_test
