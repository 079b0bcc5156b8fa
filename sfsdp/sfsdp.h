// SPDX-License-Identifier: BSD-3-Clause
// The one header of a training program: init, meta_init, init_device_mesh, data_parallel, compile, Step, write_pt2. See the README.
#pragma once

#include "sfsdp/comm/init.h"
#include "sfsdp/step/step.h"
#include "sfsdp/step/write_pt2.h"
