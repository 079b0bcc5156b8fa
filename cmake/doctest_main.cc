// SPDX-License-Identifier: BSD-3-Clause
// main() of core_tests and torch_tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
