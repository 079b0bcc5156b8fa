// SPDX-License-Identifier: BSD-3-Clause
// Stands in for a Gloo header that LibTorch includes but does not install; LibTorch's classes hold what is in it only
// by pointer.
#pragma once
