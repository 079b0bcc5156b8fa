// SPDX-License-Identifier: BSD-3-Clause
// What a test of your own model includes beside sfsdp.h: run_ranks, ranks as threads of the test's process.
#pragma once

#include "sfsdp/comm/thread/run_ranks.h"
