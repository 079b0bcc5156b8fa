// The precompiled header of core_tests, whose units are compiled for an executable and at -O1: that of the core, and doctest.
#pragma once

#include <doctest/doctest.h>

#include "core_pch.h"
