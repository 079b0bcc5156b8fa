// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// How long causal attention takes on one thread by LibTorch's kernel and by sfsdp's, forward and backward, in float32 and bfloat16, for
// three shapes; and how far each result is from float64 (root mean square, of the result's own). Prints a line for each: medians of 9
// runs in turn.
void measure_attention();
