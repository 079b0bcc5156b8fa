// SPDX-License-Identifier: BSD-3-Clause
// libsfsdp_mpi.so: mpi_functions.h over the C interface of the MPI that this machine has.
#include <mpi.h>

#include <cstdio>
#include <string>

#include "sfsdp/comm/mpi/mpi_functions.h"

struct SfsdpMpiRequest {
  MPI_Request request = MPI_REQUEST_NULL;
};

namespace {

MPI_Comm ranks = MPI_COMM_NULL;  // a copy of the world: a program that uses MPI itself is not in our way

int start(int* rank, int* world_size, int* several_threads) {
  int is_started = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_started);
  int error = is_started ? MPI_Query_thread(&level) : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (error == MPI_SUCCESS) error = MPI_Comm_dup(MPI_COMM_WORLD, &ranks);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(ranks, rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(ranks, world_size);
  *several_threads = level == MPI_THREAD_MULTIPLE;
  return error;
}

int stop() {
  MPI_Comm_free(&ranks);
  return MPI_Finalize();
}

int largest_tag() {
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
  return found ? *static_cast<int*>(value) : 32767;
}

int send(const void* data, size_t bytes, int to, int tag, SfsdpMpiRequest** request) {
  *request = new SfsdpMpiRequest;
  return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, ranks, &(*request)->request);
}

int receive(void* data, size_t bytes, int from, int tag, SfsdpMpiRequest** request) {
  *request = new SfsdpMpiRequest;
  return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, ranks, &(*request)->request);
}

void forget(SfsdpMpiRequest** request) {
  delete *request;
  *request = nullptr;
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
  if (*done) forget(request);
  return error;
}

void drop(SfsdpMpiRequest** request, int is_sent) {
  MPI_Request& pending = (*request)->request;
  if (pending != MPI_REQUEST_NULL && is_sent) MPI_Request_free(&pending);
  if (pending != MPI_REQUEST_NULL && MPI_Cancel(&pending) == MPI_SUCCESS) MPI_Wait(&pending, MPI_STATUS_IGNORE);
  forget(request);
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

constexpr SfsdpMpiFunctions kFunctions = {kSfsdpMpiAbi, &start, &stop,  &largest_tag, &send,   &receive,
                                          &test,        &drop,  &probe, &describe,    &library};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SfsdpMpiFunctions* sfsdp_mpi_functions(int abi) {
  return abi == kSfsdpMpiAbi ? &kFunctions : nullptr;
}
