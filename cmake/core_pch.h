// The precompiled header of the torch-free core: the graph, which half of its units read, and what the standard library gives it.
// It only makes includes fast: a file still includes what it uses. Measured with g++ 12, seconds of processor time per unit:
//   four units of passes, cost and compile 19.1 without, 12.3 with; an empty one 0.4, as templates that headers leave are made
//   in each; <filesystem>, <fstream> and <functional> in it cost each unit more than they save
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"
