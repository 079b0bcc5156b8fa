// SPDX-License-Identifier: BSD-3-Clause
// What libsfsdp_mpi.so gives: a table of functions over an MPI library, in plain C. All of sfsdp but the plug-in is built without
// MPI, and one plug-in serves every binary of the same table.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A change of the table is a new number: a plug-in of another one is refused.
inline constexpr int kSfsdpMpiAbi = 2;

struct SfsdpMpiRequest;  // a message on its way, made by send and receive, gone when test says done

struct SfsdpMpiStarted {
  int rank;
  int world_size;
  int threads;      // that may call this MPI: 0: only the one that has started it, 1: one at a time, 2: all at once
  int local_ranks;  // ranks that share memory with this one, itself among them
  int local_cores;  // that these may run on, all together; 0: unknown
};

// Functions return 0, or an error of MPI whose text `describe` gives. From any thread, but for start and stop.
struct SfsdpMpiFunctions {
  int abi;
  // Once per process, on all ranks. An MPI that the program has started is taken as it is.
  int (*start)(SfsdpMpiStarted* started);
  // After it, no other. Ends MPI if `start` has begun it.
  int (*stop)();
  // The largest tag.
  int (*largest_tag)();
  // Messages between the same two ranks with the same tag come in order. `bytes` below 2 GiB; the memory stays until done.
  // After an error there is no request.
  int (*send)(const void* data, size_t bytes, int to, int tag, SfsdpMpiRequest** request);
  int (*receive)(void* data, size_t bytes, int from, int tag, SfsdpMpiRequest** request);
  // done: 1 and the request is gone, as after an error. received: bytes of a message that has come.
  int (*test)(SfsdpMpiRequest** request, int* done, size_t* received);
  // Takes back a message that is waited for, unless its data has begun to come: that cannot be stopped. `test` says when it is over.
  void (*cancel)(SfsdpMpiRequest** request);
  // found: 1 if a message with the tag has come, from whom and how large. It is to be received by the thread that asks.
  int (*probe)(int tag, int* found, int* from, size_t* bytes);
  void (*describe)(int error, char* text, size_t size);
  const char* (*library)();  // "Open MPI v4.1.4"
};

// What the plug-in exports.   returns: null for another abi than its own
const SfsdpMpiFunctions* sfsdp_mpi_functions(int abi);

}  // extern "C"
