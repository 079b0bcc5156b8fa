// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the planned executor takes for a kernel beyond a hand-written loop of the same calls, in ns: chains of small ops of each kind.
void measure_calls();
