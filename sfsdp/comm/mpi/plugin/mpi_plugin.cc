// SPDX-License-Identifier: BSD-3-Clause
// libsfsdp_mpi.so: mpi_functions.h over the C interface of the MPI that this machine has.
#include <mpi.h>
#include <sched.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "sfsdp/comm/mpi/mpi_functions.h"

struct SfsdpMpiRequest {
  MPI_Request request = MPI_REQUEST_NULL;
};

namespace {

MPI_Comm ranks = MPI_COMM_NULL;  // a copy of the world: a program that uses MPI itself is not in our way
bool is_begun_here = false;

// How many ranks have this host's memory, and which cores they may run on together.
int look_at_host(SfsdpMpiStarted* started) {
  MPI_Comm host = MPI_COMM_NULL;
  int error = MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(host, &started->local_ranks);
  std::array<cpu_set_t, 64> cores{};  // as base/cores.cc
  if (sched_getaffinity(0, sizeof cores, cores.data()) != 0) cores = {};
  if (error == MPI_SUCCESS)
    error = MPI_Allreduce(MPI_IN_PLACE, cores.data(), static_cast<int>(sizeof cores), MPI_BYTE, MPI_BOR, host);
  started->local_cores = CPU_COUNT_S(sizeof cores, cores.data());
  if (host != MPI_COMM_NULL) MPI_Comm_free(&host);
  return error;
}

int start(SfsdpMpiStarted* started) {
  int is_started = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_started);
  int error = is_started ? MPI_Query_thread(&level) : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  is_begun_here = !is_started && error == MPI_SUCCESS;
  if (error == MPI_SUCCESS) error = MPI_Comm_dup(MPI_COMM_WORLD, &ranks);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(ranks, &started->rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(ranks, &started->world_size);
  if (error == MPI_SUCCESS) error = look_at_host(started);
  started->threads = level == MPI_THREAD_MULTIPLE ? 2 : level == MPI_THREAD_SERIALIZED ? 1 : 0;
  return error;
}

int stop() {
  int is_over = 0;  // ended by the program, which has begun it
  MPI_Finalized(&is_over);
  if (is_over) return MPI_SUCCESS;
  const int error = MPI_Comm_free(&ranks);
  return is_begun_here ? MPI_Finalize() : error;
}

int largest_tag() {
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
  return found ? *static_cast<int*>(value) : 32767;
}

int send(const void* data, size_t bytes, int to, int tag, SfsdpMpiRequest** request) {
  auto made = std::make_unique<SfsdpMpiRequest>();
  const int error = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, ranks, &made->request);
  *request = error == MPI_SUCCESS ? made.release() : nullptr;
  return error;
}

int receive(void* data, size_t bytes, int from, int tag, SfsdpMpiRequest** request) {
  auto made = std::make_unique<SfsdpMpiRequest>();
  const int error = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, ranks, &made->request);
  *request = error == MPI_SUCCESS ? made.release() : nullptr;
  return error;
}

int test(SfsdpMpiRequest** request, int* done, size_t* received) {
  MPI_Status status;
  int error = MPI_Test(&(*request)->request, done, &status);
  if (error != MPI_SUCCESS) {
    *done = 1;  // MPI has given the request up
  } else if (*done) {
    int count = 0;
    error = MPI_Get_count(&status, MPI_BYTE, &count);
    *received = static_cast<size_t>(count);
  }
  if (*done) {
    delete *request;
    *request = nullptr;
  }
  return error;
}

// No wait follows: Open MPI lets a message that has begun to come go on, and its sender may be stopped.
void cancel(SfsdpMpiRequest** request) {
  if ((*request)->request != MPI_REQUEST_NULL) MPI_Cancel(&(*request)->request);
}

int probe(int tag, int* found, int* from, size_t* bytes) {
  MPI_Status status;
  int error = MPI_Iprobe(MPI_ANY_SOURCE, tag, ranks, found, &status);
  if (error != MPI_SUCCESS || !*found) return error;
  int count = 0;
  error = MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *bytes = static_cast<size_t>(count);
  return error;
}

void describe(int error, char* text, size_t size) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, words, &length);
  std::snprintf(text, size, "%s", words);
}

const char* library() {
  static const std::string first_words = [] {
    char words[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(words, &length);
    const std::string text = words;
    return text.substr(0, text.find_first_of(",\n"));
  }();
  return first_words.c_str();
}

constexpr SfsdpMpiFunctions kFunctions = {kSfsdpMpiAbi, &start,  &stop,  &largest_tag, &send,   &receive,
                                          &test,        &cancel, &probe, &describe,    &library};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SfsdpMpiFunctions* sfsdp_mpi_functions(int abi) {
  return abi == kSfsdpMpiAbi ? &kFunctions : nullptr;
}
