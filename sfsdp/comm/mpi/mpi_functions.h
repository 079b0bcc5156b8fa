// SPDX-License-Identifier: BSD-3-Clause
// What libsfsdp_mpi.so gives: a table of functions over an MPI library, in plain C. All of sfsdp but the plug-in is built without
// MPI, and one plug-in serves every binary of the same table.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A change of the table is a new number: a plug-in of another one is refused.
inline constexpr int kSfsdpMpiAbi = 1;

struct SfsdpMpiRequest;  // a message on its way, made by send and receive, gone when test says done

// Functions return 0, or an error of MPI whose text `describe` gives. From any thread, but for start and stop.
struct SfsdpMpiFunctions {
  int abi;
  // Once per process. `several_threads`: 0 where this MPI lets only one thread at a time call it.
  int (*start)(int* rank, int* world_size, int* several_threads);
  // After it, no other.
  int (*stop)();
  // The largest tag.
  int (*largest_tag)();
  // Messages between the same two ranks with the same tag come in order. `bytes` below 2 GiB; the memory stays until done.
  int (*send)(const void* data, size_t bytes, int to, int tag, SfsdpMpiRequest** request);
  int (*receive)(void* data, size_t bytes, int from, int tag, SfsdpMpiRequest** request);
  // done: 1 and the request is gone. received: bytes of a message that has come.
  int (*test)(SfsdpMpiRequest** request, int* done, size_t* received);
  // Takes back a message that is waited for; one that is sent cannot be taken back, and MPI keeps it. The request is gone.
  void (*drop)(SfsdpMpiRequest** request, int is_sent);
  // found: 1 if a message with the tag has come, from whom and how large. It is to be received by the thread that asks.
  int (*probe)(int tag, int* found, int* from, size_t* bytes);
  void (*describe)(int error, char* text, size_t size);
  const char* (*library)();  // "Open MPI v4.1.4"
};

// What the plug-in exports.   returns: null for another abi than its own
const SfsdpMpiFunctions* sfsdp_mpi_functions(int abi);

}  // extern "C"
