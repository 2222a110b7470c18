// The C interface as a C99 program uses it, in two processes.
//
// usage: c_test HOSTDRIVER CASE
//        c_test HOSTDRIVER peer-memory TEXT         (the other process of a case)
//        c_test HOSTDRIVER peer-pool TEXT TICKETS TEXT TICKET
#define _POSIX_C_SOURCE 200809L

#include "tests/c/c_test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char* program;
const char* driver_path;

vmmshare_driver* Driver(void) {
  vmmshare_driver* driver = NULL;
  MUST(vmmshare_driver_load(driver_path, &driver, &error));
  return driver;
}

vmmshare_device* Device(const vmmshare_driver* driver) {
  vmmshare_device* device = NULL;
  MUST(vmmshare_device_open(driver, 0, &device, &error));
  return device;
}

vmmshare_memory* HostMemory(const vmmshare_device* device, uint64_t size) {
  vmmshare_memory_options options = {sizeof(options)};
  vmmshare_memory* memory = NULL;
  options.size = size;
  options.flags = VMMSHARE_ON_HOST;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  return memory;
}

unsigned char* Bytes(uint64_t address) {
  return (unsigned char*)(uintptr_t)address;
}

static void Hex(const uint8_t* bytes, size_t count, char* out) {
  for (size_t i = 0; i < count; ++i) sprintf(out + 2 * i, "%02x", bytes[i]);
}

static void Unhex(const char* text, uint8_t* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    unsigned byte = 0;
    CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
    bytes[i] = (uint8_t)byte;
  }
}

// Runs this program again and returns when it has succeeded.
static void RunPeer(const char* what, const char* a, const char* b,
                    const char* c, const char* d) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl(program, program, driver_path, what, a, b, c, d, (char*)NULL);
    _exit(127);
  }
  Join(child);
}

static void PeerMemory(const char* text) {
  vmmshare_driver* driver = Driver();
  vmmshare_import_options options = {sizeof(options)};
  options.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_open(driver, text, &options, 10 * SECOND, &memory,
                            &error));
  CHECK(vmmshare_memory_requested_size(memory) == 1000);
  CHECK(vmmshare_memory_numa_node(memory) == 0);
  CHECK(vmmshare_memory_kinds(memory) == 0);
  const unsigned char* bytes = Bytes(vmmshare_memory_address(memory));
  for (int i = 0; i < 1000; ++i) CHECK(bytes[i] == (unsigned char)(i * 7));

  int64_t return_in_ns = 0;
  MUST(vmmshare_memory_lease(memory, &return_in_ns, &error));
  CHECK(return_in_ns == VMMSHARE_FOREVER);
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "imported memory",
        vmmshare_server_share_memory(server, memory, &share, &error));
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
  vmmshare_driver_close(driver);
}

static void MemoryIsSharedByText(void) {
  vmmshare_driver* driver = Driver();
  CHECK(vmmshare_driver_is_host_memory(driver) == 1);
  vmmshare_device* device = Device(driver);
  vmmshare_memory* memory = HostMemory(device, 1000);
  unsigned char* bytes = Bytes(vmmshare_memory_address(memory));
  for (int i = 0; i < 1000; ++i) bytes[i] = (unsigned char)(i * 7);
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_memory(server, memory, &share, &error));
  RunPeer("peer-memory", vmmshare_share_text(share), NULL, NULL, NULL);
  MUST(vmmshare_server_wait_returned(server, 10 * SECOND, &error));
  vmmshare_text* json = NULL;
  MUST(vmmshare_server_leases(server, &json, &error));
  CHECK(strcmp(vmmshare_text_get(json), "[]\n") == 0);
  vmmshare_text_free(json);

  // Of memory that nobody holds, beside some that this process opened too.
  vmmshare_memory* other = HostMemory(device, 1000);
  vmmshare_memory* opened = NULL;
  MUST(vmmshare_memory_open(driver, vmmshare_share_text(share), NULL,
                            10 * SECOND, &opened, &error));
  MUST(vmmshare_server_memory_leases(server, memory, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"process\"") != NULL);
  vmmshare_text_free(json);
  MUST(vmmshare_server_memory_leases(server, other, &json, &error));
  CHECK(strcmp(vmmshare_text_get(json), "[]\n") == 0);
  vmmshare_text_free(json);
  MUST(vmmshare_server_leases(server, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"held\"") != NULL);
  vmmshare_text_free(json);
  MUST(vmmshare_server_wait_memory_returned(server, other, SECOND, &error));
  int64_t return_in_ns = 0;
  MUST(vmmshare_memory_lease(opened, &return_in_ns, &error));
  CHECK(return_in_ns == VMMSHARE_FOREVER);
  MUST(vmmshare_server_recall_all(server, 600 * SECOND, &error));
  MUST(vmmshare_server_memory_leases(server, memory, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"recalled\"") != NULL);
  vmmshare_text_free(json);
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "memory",
        vmmshare_server_wait_memory_returned(server, memory, 0, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "imported memory",
        vmmshare_server_memory_leases(server, opened, &json, &error));
  vmmshare_memory_close(opened);
  vmmshare_memory_close(other);
  MUST(vmmshare_server_wait_memory_returned(server, memory, 10 * SECOND,
                                            &error));

  // Its handles, for whoever maps them; held until the lease is closed.
  vmmshare_fetched* fetched = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_fetch(driver, "no text of ours", SECOND, &fetched, &error));
  CHECK(fetched == NULL && vmmshare_fetched_chunks(fetched) == 0);
  MUST(vmmshare_fetch(driver, vmmshare_share_text(share), 10 * SECOND, &fetched,
                      &error));
  CHECK(vmmshare_fetched_chunks(fetched) == 1);
  vmmshare_raw_handle raw;
  FAILS(VMMSHARE_OUT_OF_RANGE, "chunk 1 of 1",
        vmmshare_fetched_take(fetched, 1, &raw, &error));
  MUST(vmmshare_fetched_take(fetched, 0, &raw, &error));
  vmmshare_raw_handle again_raw;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "was taken",
        vmmshare_fetched_take(fetched, 0, &again_raw, &error));
  CHECK(raw.os_handle >= 0 && again_raw.os_handle == -1);
  CHECK(fcntl((int)raw.os_handle, F_GETFD) == FD_CLOEXEC);
  vmmshare_import_options import = {sizeof(import)};
  import.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  MUST(vmmshare_memory_import(device, &raw, 1, VMMSHARE_ON_HOST, 0, &import,
                              &opened, &error));
  CHECK(Bytes(vmmshare_memory_address(opened))[999] == bytes[999]);
  vmmshare_memory_close(opened);
  CHECK(close((int)raw.os_handle) == 0);
  MUST(vmmshare_fetched_lease(fetched, &return_in_ns, &error));
  CHECK(return_in_ns == VMMSHARE_FOREVER);
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "memory",
        vmmshare_server_wait_memory_returned(server, memory, 0, &error));
  vmmshare_fetched_close(fetched);
  MUST(vmmshare_server_wait_memory_returned(server, memory, 10 * SECOND,
                                            &error));

  // Each share has a text of its own, also of the same memory.
  vmmshare_share* again = NULL;
  MUST(vmmshare_server_share_memory(server, memory, &again, &error));
  CHECK(strcmp(vmmshare_share_text(share), vmmshare_share_text(again)) != 0);
  vmmshare_share_close(again);
  // In the order that would not do in C++.
  char text[512];
  CHECK(strlen(vmmshare_share_text(share)) < sizeof(text));
  strcpy(text, vmmshare_share_text(share));
  vmmshare_device_close(device);
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
  vmmshare_share_close(share);
  vmmshare_memory* gone = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_memory_open(driver, text, NULL, SECOND, &gone, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_memory_open(driver, "no text of ours", NULL, SECOND, &gone,
                             &error));
  vmmshare_driver_close(driver);
}

enum { kBlocks = 50 };

static void PeerPool(const char* text, const char* hex, const char* fences_text,
                     const char* fence_hex) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_import_options options = {sizeof(options)};
  options.flags = VMMSHARE_IMPORT_HOST_ACCESS | VMMSHARE_IMPORT_WRITABLE;
  vmmshare_imported_pool* pool = NULL;
  MUST(vmmshare_imported_pool_open(driver, text, &options, 10 * SECOND, &pool,
                                   &error));
  uint8_t tickets[kBlocks * VMMSHARE_BLOCK_TICKET_BYTES];
  vmmshare_block* blocks[kBlocks];
  Unhex(hex, tickets, sizeof(tickets));
  MUST(vmmshare_imported_pool_import(pool, tickets, kBlocks, 10 * SECOND,
                                     blocks, &error));
  MUST(vmmshare_imported_pool_connection(pool, &error));
  vmmshare_text* weakness = NULL;
  MUST(vmmshare_imported_pool_weakness(pool, &weakness, &error));
  CHECK(strcmp(vmmshare_text_get(weakness), "") == 0);
  vmmshare_text_free(weakness);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`text` is NULL",
        vmmshare_imported_pool_weakness(pool, NULL, &error));

  vmmshare_fence_pool* fences = NULL;
  vmmshare_fence* fence = NULL;
  uint8_t fence_ticket[VMMSHARE_FENCE_TICKET_BYTES];
  Unhex(fence_hex, fence_ticket, sizeof(fence_ticket));
  MUST(vmmshare_fence_pool_open(device, fences_text, 10 * SECOND, &fences,
                                &error));
  MUST(vmmshare_fence_pool_connection(fences, &error));
  MUST(vmmshare_fence_open(fences, fence_ticket, 10 * SECOND, &fence, &error));
  MUST(vmmshare_fence_wait_host(fence, 1, 10 * SECOND, &error));
  for (int i = 0; i < kBlocks; ++i) {
    CHECK(vmmshare_block_size(blocks[i]) == 4000);
    unsigned char* bytes = Bytes(vmmshare_block_address(blocks[i]));
    CHECK(bytes[0] == i && bytes[3999] == i);
    bytes[0] = (unsigned char)(i + 100);
  }
  MUST(vmmshare_fence_signal_host(fence, 2, &error));

  // One bit of the last ticket is wrong: nothing is imported.
  vmmshare_block* none[kBlocks];
  tickets[sizeof(tickets) - 1] ^= 1;
  CHECK(vmmshare_imported_pool_import(pool, tickets, kBlocks, SECOND, none,
                                      NULL) == VMMSHARE_INVALID_ARGUMENT);
  CHECK(none[0] == NULL && none[kBlocks - 1] == NULL);
  // The pool first: what others need of it stays.
  vmmshare_imported_pool_close(pool);
  for (int i = 0; i < kBlocks; ++i) vmmshare_block_close(blocks[i]);
  vmmshare_fence_pool_close(fences);
  vmmshare_fence_close(fence);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void ANullStreamOfEachThreadIsRefused(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_pool_options options = {sizeof(options)};
  options.flags = VMMSHARE_NULL_STREAM_PER_THREAD;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &options, &pool, &error));
  uint64_t block = 0;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "CU_STREAM_PER_THREAD",
        vmmshare_pool_allocate(pool, 64, 0, NULL, &block, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "CU_STREAM_PER_THREAD",
        vmmshare_pool_allocate(pool, 64, 0, (void*)2, &block, &error));
  MUST(vmmshare_pool_allocate(pool, 64, 0, (void*)1, &block, &error));
  MUST(vmmshare_pool_free(pool, block, (void*)1, &error));
  vmmshare_pool_close(pool);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void BlocksAndFencesAreSharedByTickets(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_pool_options options = {sizeof(options)};
  options.flags = VMMSHARE_ON_HOST;
  options.first_segment_size = 4 << 20;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &options, &pool, &error));
  void* stream = (void*)1;  // CU_STREAM_LEGACY.
  uint64_t blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    MUST(vmmshare_pool_allocate(pool, 4000, 0, stream, &blocks[i], &error));
    memset(Bytes(blocks[i]), i, 4000);
  }
  uint8_t tickets[kBlocks * VMMSHARE_BLOCK_TICKET_BYTES];
  char hex[2 * sizeof(tickets) + 1];
  MUST(vmmshare_pool_tickets(pool, blocks, kBlocks, tickets, &error));
  Hex(tickets, sizeof(tickets), hex);

  vmmshare_fence_pool* fences = NULL;
  vmmshare_fence* fence = NULL;
  MUST(vmmshare_fence_pool_create(device, &fences, &error));
  MUST(vmmshare_fence_create(fences, &fence, &error));
  uint8_t fence_ticket[VMMSHARE_FENCE_TICKET_BYTES];
  char fence_hex[2 * sizeof(fence_ticket) + 1];
  MUST(vmmshare_fence_ticket(fence, fence_ticket, &error));
  Hex(fence_ticket, sizeof(fence_ticket), fence_hex);
  MUST(vmmshare_fence_signal_host(fence, 1, &error));

  vmmshare_server* server = NULL;
  vmmshare_share* pool_share = NULL;
  vmmshare_share* fences_share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_pool(server, pool, &pool_share, &error));
  MUST(vmmshare_server_share_fences(server, fences, &fences_share, &error));
  RunPeer("peer-pool", vmmshare_share_text(pool_share), hex,
          vmmshare_share_text(fences_share), fence_hex);
  MUST(vmmshare_pool_wait_returned(pool, NULL, 0, 10 * SECOND, &error));
  for (int i = 0; i < kBlocks; ++i) CHECK(*Bytes(blocks[i]) == i + 100);
  uint64_t value = 0;
  MUST(vmmshare_fence_value(fence, &value, &error));
  CHECK(value == 2);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "",
        vmmshare_fence_signal_host(fence, 1, &error));
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "",
        vmmshare_fence_wait_host(fence, 3, 1, &error));

  vmmshare_pool_statistics statistics = {sizeof(statistics)};
  MUST(vmmshare_pool_get_statistics(pool, &statistics, &error));
  CHECK(statistics.live_blocks == kBlocks && statistics.tickets == kBlocks);
  MUST(vmmshare_pool_free(pool, blocks[0], stream, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "",
        vmmshare_pool_free(pool, blocks[0], stream, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_pool_free(pool, blocks[1] + 1, stream, &error));
  MUST(vmmshare_pool_free(pool, blocks[1], VMMSHARE_ALL_STREAMS, &error));
  MUST(vmmshare_pool_allocate(pool, 4000, 0, VMMSHARE_ALL_STREAMS, &blocks[1],
                              &error));
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "AllStreams()",
      vmmshare_pool_release_stream(pool, VMMSHARE_ALL_STREAMS, SECOND, &error));
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "AllStreams()",
      vmmshare_pool_order(pool, stream, VMMSHARE_ALL_STREAMS, SECOND, &error));
  vmmshare_share_close(fences_share);
  vmmshare_share_close(pool_share);
  vmmshare_server_close(server);
  vmmshare_fence_close(fence);
  vmmshare_fence_pool_close(fences);
  vmmshare_pool_close(pool);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

void Find(const char* name, void* function) {
  static void* library;
  if (library == NULL) library = dlopen(driver_path, RTLD_NOW);
  void* const found = library == NULL ? NULL : dlsym(library, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof(found));
}

void EnterContext(void) {
  int (*retain)(void**, int);
  int (*make_current)(void*);
  void* context = NULL;
  Find("cuDevicePrimaryCtxRetain", &retain);
  Find("cuCtxSetCurrent", &make_current);
  CHECK(retain(&context, 0) == 0 && make_current(context) == 0);
}

static int HasContext(void) {
  int (*current)(void**);
  void* context = NULL;
  Find("cuCtxGetCurrent", &current);
  CHECK(current(&context) == 0);
  return context != NULL;
}

void Join(int child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// By a kernel, on a stream of the primary context.
static void AStreamMeetsTheHost(const vmmshare_device* device, uint64_t at,
                                uint64_t bytes) {
  int (*create)(void**, unsigned);
  int (*query)(void*);
  int (*synchronize)(void*);
  int (*destroy)(void*);
  Find("cuStreamCreate", &create);
  Find("cuStreamQuery", &query);
  Find("cuStreamSynchronize", &synchronize);
  Find("cuStreamDestroy_v2", &destroy);
  void* stream = NULL;
  EnterContext();
  CHECK(create(&stream, 1) == 0);
  vmmshare_fence_array* array = NULL;
  MUST(vmmshare_fence_array_create_with_kernels(device, at, bytes, &array,
                                                &error));
  MUST(vmmshare_fence_array_clear(array, 10 * SECOND, &error));
  vmmshare_fence* pair[2] = {NULL, NULL};
  for (uint64_t i = 0; i < 2; ++i) {
    MUST(vmmshare_fence_array_at(array, i, &pair[i], &error));
  }
  FAILS(VMMSHARE_INVALID_ARGUMENT, "signals",
        vmmshare_fence_meet(NULL, 1, NULL, 0, stream, 1, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "cannot be signalled 0",
        vmmshare_fence_meet(pair, 1, &pair[1], 1, stream, 0, &error));
  MUST(vmmshare_fence_meet(pair, 1, &pair[1], 1, stream, 1, &error));
  MUST(vmmshare_fence_wait_host(pair[0], 1, 10 * SECOND, &error));
  CHECK(query(stream) == 600);  // CUDA_ERROR_NOT_READY.
  MUST(vmmshare_fence_signal_host(pair[1], 1, &error));
  MUST(vmmshare_fence_add(pair[0], stream, 4, &error));
  MUST(vmmshare_fence_wait_host(pair[0], 5, 10 * SECOND, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "signalled 0",
        vmmshare_fence_add(pair[0], stream, 0, &error));
  CHECK(synchronize(stream) == 0 && destroy(stream) == 0);
  vmmshare_fence_close(pair[0]);
  vmmshare_fence_close(pair[1]);
  vmmshare_fence_array_close(array);
}

static void FencesLieInDeviceMemory(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory_options options = {sizeof(options)};
  vmmshare_memory* memory = NULL;
  options.size = 4 * VMMSHARE_FENCE_BYTES;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  const uint64_t at = vmmshare_memory_address(memory);

  vmmshare_fence_array* array = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_fence_array_create(device, at, VMMSHARE_FENCE_BYTES + 1,
                                    &array, &error));
  CHECK(array == NULL && vmmshare_fence_array_size(NULL) == 0);
  MUST(vmmshare_fence_array_create(device, at, options.size, &array, &error));
  CHECK(vmmshare_fence_array_size(array) == 4);
  MUST(vmmshare_fence_array_clear(array, 10 * SECOND, &error));
  vmmshare_fence* fence = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_fence_array_at(array, 4, &fence, &error));
  CHECK(fence == NULL);
  MUST(vmmshare_fence_array_at(array, 3, &fence, &error));
  vmmshare_fence* same = NULL;
  MUST(vmmshare_fence_array_at(array, 3, &same, &error));
  vmmshare_fence_array_close(array);
  MUST(vmmshare_fence_signal_host(fence, 5, &error));
  MUST(vmmshare_fence_wait_host(same, 5, 10 * SECOND, &error));
  uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES];
  FAILS(VMMSHARE_FAILED_PRECONDITION, "by its index",
        vmmshare_fence_ticket(fence, ticket, &error));
  vmmshare_fence_close(same);
  vmmshare_fence_close(fence);
  AStreamMeetsTheHost(device, at, options.size);
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void MemoryIsDescribedForNetworkCards(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory_options options = {sizeof(options)};
  vmmshare_memory* memory = NULL;
  options.size = 4 << 20;
  options.max_chunk_size = 2 << 20;
  options.flags = VMMSHARE_RDMA_TRY | VMMSHARE_RDMA_REQUIRE;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "Give one",
        vmmshare_memory_create(device, &options, &memory, &error));
  options.flags = VMMSHARE_RDMA_REQUIRE;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  int capable = 0;
  vmmshare_text* refusal = NULL;
  MUST(vmmshare_memory_rdma(memory, &capable, &refusal, &error));
  CHECK(capable == 1 && strcmp(vmmshare_text_get(refusal), "") == 0);
  vmmshare_text_free(refusal);
  MUST(vmmshare_memory_rdma(memory, &capable, NULL, &error));

  vmmshare_dma_buf bufs[2];
  uint32_t count = 7;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`room` is 1",
        vmmshare_memory_dma_bufs(memory, 0, 0, 0, bufs, 1, &count, &error));
  CHECK(count == 2);
  // How many there are can be asked without room for any.
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`room` is 0",
        vmmshare_memory_dma_bufs(memory, 0, 0, 0, NULL, 0, &count, &error));
  CHECK(count == 2);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`bufs` is NULL",
        vmmshare_memory_dma_bufs(memory, 0, 0, 0, NULL, 1, &count, &error));
  CHECK(count == 0);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`flags` is 2",
        vmmshare_memory_dma_bufs(memory, 0, 0, 2, bufs, 2, &count, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_memory_dma_bufs(memory, 1, 0, 0, bufs, 2, &count, &error));
  MUST(vmmshare_memory_dma_bufs(memory, 0, 0, 0, bufs, 2, &count, &error));
  CHECK(count == 2);
  for (uint32_t i = 0; i < count; ++i) {
    CHECK(bufs[i].offset == i * (uint64_t)(2 << 20));
    CHECK(bufs[i].size == 2 << 20);
    CHECK(close(bufs[i].descriptor) == 0);
  }
  MUST(vmmshare_memory_dma_bufs(memory, 0, 2 << 20, VMMSHARE_DMA_BUF_PCIE, bufs,
                                1, &count, &error));
  CHECK(count == 1 && close(bufs[0].descriptor) == 0);
  // From the middle of the first chunk to that of the second.
  const uint64_t address = vmmshare_memory_address(memory) + (1 << 20);
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "`room` is 0",
      vmmshare_dma_bufs(driver, address, 2 << 20, 0, NULL, 0, &count, &error));
  CHECK(count == 2);
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "`bufs` is NULL",
      vmmshare_dma_bufs(driver, address, 2 << 20, 0, NULL, 1, &count, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "at least 1",
        vmmshare_dma_bufs(driver, address, 0, 0, bufs, 2, &count, &error));
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "`flags` is 2",
      vmmshare_dma_bufs(driver, address, 2 << 20, 2, bufs, 2, &count, &error));
  MUST(vmmshare_dma_bufs(driver, address, 2 << 20, 0, bufs, 2, &count, &error));
  CHECK(count == 2);
  for (uint32_t i = 0; i < count; ++i) {
    CHECK(bufs[i].offset == i * (uint64_t)(1 << 20));
    CHECK(bufs[i].size == 1 << 20);
    CHECK(close(bufs[i].descriptor) == 0);
  }
  vmmshare_memory_close(memory);

  options.flags = 0;
  options.kinds = VMMSHARE_KIND_POSIX_FD | VMMSHARE_KIND_LEGACY_IPC;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  CHECK(vmmshare_memory_kinds(memory) == VMMSHARE_KIND_POSIX_FD);
  vmmshare_memory_close(memory);
  options.kinds = VMMSHARE_KIND_LEGACY_IPC;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  CHECK(vmmshare_memory_kinds(memory) == VMMSHARE_KIND_LEGACY_IPC);
  uint64_t base = 0;
  uint64_t size = 0;
  vmmshare_memory_disclosed(memory, &base, &size);
  CHECK(base == vmmshare_memory_address(memory) && size == 4 << 20);
  MUST(vmmshare_memory_weakness(memory, &refusal, &error));
  CHECK(strstr(vmmshare_text_get(refusal), "legacy CUDA IPC") != NULL);
  vmmshare_text_free(refusal);
  vmmshare_memory_close(memory);

  vmmshare_pool_options pool_options = {sizeof(pool_options)};
  pool_options.kinds = VMMSHARE_KIND_LEGACY_IPC;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &pool_options, &pool, &error));
  MUST(vmmshare_pool_weakness(pool, &refusal, &error));
  CHECK(strcmp(vmmshare_text_get(refusal), "") == 0);
  vmmshare_text_free(refusal);
  uint64_t block = 0;
  MUST(vmmshare_pool_allocate(pool, 1, 0, (void*)1, &block, &error));
  MUST(vmmshare_pool_weakness(pool, &refusal, &error));
  CHECK(strstr(vmmshare_text_get(refusal), "legacy CUDA IPC") != NULL);
  vmmshare_text_free(refusal);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`text` is NULL",
        vmmshare_pool_weakness(pool, NULL, &error));
  MUST(vmmshare_pool_free(pool, block, (void*)1, &error));
  vmmshare_pool_close(pool);

  options.kinds = VMMSHARE_KIND_STREAM_POOL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`kinds` is 128",
        vmmshare_memory_create(device, &options, &memory, &error));
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void BadArgumentsAreRefused(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory* memory = NULL;
  vmmshare_pool* pool = NULL;
  int32_t count = -1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_driver is NULL",
        vmmshare_device_count(NULL, &count, &error));
  CHECK(count == 0);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`count` is NULL",
        vmmshare_device_count(driver, NULL, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "is no vmmshare_driver",
        vmmshare_device_count((vmmshare_driver*)device, &count, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`options` is NULL",
        vmmshare_memory_create(device, NULL, &memory, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`path` is NULL",
        vmmshare_driver_load(NULL, &driver, &error));
  CHECK(driver == NULL);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "absolute",
        vmmshare_driver_load("libvmmshare_hostdriver.so", &driver, &error));
  vmmshare_pool_options options = {sizeof(options)};
  options.kinds = 4;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`kinds` is 4",
        vmmshare_pool_create(device, &options, &pool, &error));
  CHECK(pool == NULL);
  // Without an error's address the code is all there is.
  CHECK(vmmshare_pool_create(device, &options, &pool, NULL) ==
        VMMSHARE_INVALID_ARGUMENT);
  // What asks for nothing takes anything.
  CHECK(vmmshare_memory_address(NULL) == 0);
  CHECK(strcmp(vmmshare_share_text(NULL), "") == 0);
  CHECK(strcmp(vmmshare_server_address(NULL), "") == 0);
  CHECK(vmmshare_error_cuda_result(NULL) == -1);
  vmmshare_device_uuid(device, NULL);
  vmmshare_memory* host = HostMemory(device, 4096);
  vmmshare_memory_device_uuid(host, NULL);
  vmmshare_memory_close(host);
  const char* const no_word[1] = {NULL};
  CHECK(vmmshare_main(2, NULL) == 2);
  CHECK(vmmshare_main(1, no_word) == 2);
  CHECK(vmmshare_main(-1, NULL) == 2);
  vmmshare_memory_close(NULL);
  vmmshare_pool_close(NULL);
  vmmshare_block_close(NULL);
  vmmshare_error_free(NULL);
  vmmshare_device_close(device);
}

// A newer program's options are taken as long as what is new is not used.
static void OptionsOfOtherSizes(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  struct {
    vmmshare_memory_options options;
    uint64_t news;
  } newer;
  memset(&newer, 0, sizeof(newer));
  newer.options.size = 4096;
  vmmshare_memory* memory = NULL;

  newer.options.struct_size = sizeof(newer);
  MUST(vmmshare_memory_create(device, &newer.options, &memory, &error));
  vmmshare_memory_close(memory);
  newer.news = 1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "does not know",
        vmmshare_memory_create(device, &newer.options, &memory, &error));
  newer.news = 0;
  const uint64_t wrong[] = {0,
                            4,
                            sizeof(vmmshare_memory_options) - 8,
                            sizeof(vmmshare_memory_options) + 4,
                            1 << 20,
                            UINT64_MAX};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    newer.options.struct_size = wrong[i];
    FAILS(VMMSHARE_INVALID_ARGUMENT, "struct_size",
          vmmshare_memory_create(device, &newer.options, &memory, &error));
  }
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// What an option does not have is not passed over.
static void OptionsThatMeanNothing(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  // Refused before the exchange is asked.
  vmmshare_exchange exchange = {sizeof(exchange)};
  vmmshare_symmetric_options symmetric = {sizeof(symmetric)};
  vmmshare_symmetric* none = NULL;
  symmetric.size = 4096;
  const uint32_t flags[] = {UINT32_MAX, VMMSHARE_ON_HOST, VMMSHARE_PRIVATE};
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); ++i) {
    symmetric.flags = flags[i];
    for (symmetric.kinds = 0; symmetric.kinds < 2; ++symmetric.kinds) {
      FAILS(VMMSHARE_INVALID_ARGUMENT, "Give 0.",
            vmmshare_symmetric_create(device, &exchange, &symmetric, SECOND,
                                      &none, &error));
    }
  }

  vmmshare_server* server = NULL;
  vmmshare_server_options serving = {sizeof(serving)};
  serving.request_timeout_ns = -5;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`request_timeout_ns` is -5",
        vmmshare_server_start(&serving, &server, &error));
  serving.request_timeout_ns = 0;
  serving.transfer_timeout_ns = -1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`transfer_timeout_ns` is -1",
        vmmshare_server_start(&serving, &server, &error));
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// A job of one rank: its exchange is its own memory.
typedef struct {
  char keys[8][64];
  uint8_t values[8][4096];
  uint64_t sizes[8];
  int count;
} Medium;
static vmmshare_status MediumPut(void* user, const char* key,
                                 const uint8_t* value, uint64_t size,
                                 int64_t timeout_ns) {
  Medium* medium = user;
  (void)timeout_ns;
  if (medium->count == 8 || size > 4096 || strlen(key) > 63) {
    return VMMSHARE_RESOURCE_EXHAUSTED;
  }
  strcpy(medium->keys[medium->count], key);
  memcpy(medium->values[medium->count], value, (size_t)size);
  medium->sizes[medium->count++] = size;
  return VMMSHARE_OK;
}
static vmmshare_status MediumFence(void* user, int64_t timeout_ns) {
  (void)user;
  (void)timeout_ns;
  return VMMSHARE_OK;
}
static vmmshare_status MediumGet(void* user, int32_t rank, const char* key,
                                 uint8_t* value, uint64_t room, uint64_t* size,
                                 int64_t timeout_ns) {
  const Medium* medium = user;
  (void)timeout_ns;
  for (int i = medium->count - 1; rank == 0 && i >= 0; --i) {
    if (strcmp(medium->keys[i], key) != 0) continue;
    *size = medium->sizes[i];
    memcpy(value, medium->values[i], (size_t)(*size < room ? *size : room));
    return VMMSHARE_OK;
  }
  return VMMSHARE_NOT_FOUND;
}

static void SymmetricMemoryIsCut(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  static Medium medium;
  medium.count = 0;
  vmmshare_exchange exchange = {sizeof(exchange)};
  exchange.size = 1;
  exchange.user = &medium;
  exchange.put = MediumPut;
  exchange.fence = MediumFence;
  exchange.get = MediumGet;
  vmmshare_symmetric_options options = {sizeof(options)};
  options.size = 1 << 20;
  vmmshare_symmetric* symmetric = NULL;
  MUST(vmmshare_symmetric_create(device, &exchange, &options, SECOND,
                                 &symmetric, &error));
  uint64_t first = 0;
  uint64_t second = 0;
  MUST(vmmshare_symmetric_allocate(symmetric, 1000, 0, &first, &error));
  MUST(vmmshare_symmetric_allocate(symmetric, 1, 1 << 16, &second, &error));
  CHECK(second % (1 << 16) == 0);
  CHECK(second >= first + 1000 || first >= second + 1);
  MUST(vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  FAILS(VMMSHARE_RESOURCE_EXHAUSTED, "SymmetricMemory larger",
        vmmshare_symmetric_allocate(symmetric, 1 << 20, 0, &second, &error));
  CHECK(second == 0);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "a power of two",
        vmmshare_symmetric_allocate(symmetric, 1, 3, &second, &error));
  MUST(vmmshare_symmetric_free(symmetric, first, &error));
  FAILS(VMMSHARE_NOT_FOUND, "freed before",
        vmmshare_symmetric_free(symmetric, first, &error));
  exchange.fence = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "Give all three",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "symmetric",
        vmmshare_symmetric_allocate(NULL, 1, 0, &second, &error));
  vmmshare_symmetric_close(symmetric);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// What another library would be given, and what it would give.
static void RawHandlesGoOutAndIn(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4 << 20;
  options.max_chunk_size = 2 << 20;
  options.flags = VMMSHARE_ON_HOST;
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  CHECK(vmmshare_memory_chunks(memory) == 2);
  Bytes(vmmshare_memory_address(memory))[3 << 20] = 42;
  vmmshare_raw_handle handles[2];
  for (uint32_t i = 0; i < 2; ++i) {
    MUST(vmmshare_memory_export(memory, i, VMMSHARE_KIND_POSIX_FD, &handles[i],
                                &error));
    CHECK(handles[i].size == 2 << 20);
    CHECK(fcntl((int)handles[i].os_handle, F_GETFD) == FD_CLOEXEC);
  }
  vmmshare_raw_handle none;
  FAILS(
      VMMSHARE_INVALID_ARGUMENT, "chunk 2",
      vmmshare_memory_export(memory, 2, VMMSHARE_KIND_POSIX_FD, &none, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "cannot be shared as fabric",
        vmmshare_memory_export(memory, 0, VMMSHARE_KIND_FABRIC, &none, &error));
  vmmshare_memory_close(memory);

  vmmshare_import_options import = {sizeof(import)};
  import.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  vmmshare_memory* imported = NULL;
  MUST(vmmshare_memory_import(device, handles, 2, VMMSHARE_ON_HOST, 0, &import,
                              &imported, &error));
  CHECK(vmmshare_memory_size(imported) == 4 << 20);
  CHECK(Bytes(vmmshare_memory_address(imported))[3 << 20] == 42);
  vmmshare_memory_close(imported);

  FAILS(VMMSHARE_INVALID_ARGUMENT, "0 handles",
        vmmshare_memory_import(device, handles, 0, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  handles[1].size = 4 << 20;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "chunk 1 has",
        vmmshare_memory_import(device, handles, 2, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  CHECK(imported == NULL);
  handles[1].size = 2 << 20;
  handles[1].reserved = 5;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`reserved` is 5",
        vmmshare_memory_import(device, handles, 2, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  handles[1].reserved = 0;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`flags` is 3, of which 1",
        vmmshare_memory_import(device, handles, 2,
                               VMMSHARE_ON_HOST | VMMSHARE_PRIVATE, 0, &import,
                               &imported, &error));
  const int32_t below[] = {-1, -5, INT32_MIN};
  for (int i = 0; i < 3; ++i) {
    FAILS(VMMSHARE_INVALID_ARGUMENT, "expected 0 or more",
          vmmshare_memory_import(device, handles, 2, VMMSHARE_ON_HOST, below[i],
                                 NULL, &imported, &error));
    CHECK(imported == NULL);
  }
  // A number that no descriptor has, though its lower half is one.
  const intptr_t wide = handles[1].os_handle + ((intptr_t)1 << 32);
  vmmshare_raw_handle above = handles[1];
  above.os_handle = wide;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "EBADF",
        vmmshare_memory_import(device, &above, 1, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  // One kind, and not more bytes than a number holds.
  vmmshare_raw_handle mixed[2] = {handles[0], handles[1]};
  mixed[1].kind = VMMSHARE_KIND_FABRIC;
  mixed[1].os_handle = -1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "handle 1 is a fabric handle",
        vmmshare_memory_import(device, mixed, 2, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  mixed[1] = handles[1];
  mixed[0].size = mixed[1].size = (uint64_t)1 << 63;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "overflow",
        vmmshare_memory_import(device, mixed, 2, VMMSHARE_ON_HOST, 0, &import,
                               &imported, &error));
  vmmshare_channel* channel = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "is not open",
        vmmshare_channel_adopt(wide, &channel, &error));
  // The handles stayed this program's.
  for (int i = 0; i < 2; ++i) CHECK(close((int)handles[i].os_handle) == 0);

  // The same of the device's own memory.
  options.flags = 0;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  for (uint32_t i = 0; i < 2; ++i) {
    MUST(vmmshare_memory_export(memory, i, VMMSHARE_KIND_POSIX_FD, &handles[i],
                                &error));
  }
  MUST(vmmshare_memory_import(device, handles, 2, 0, 0, NULL, &imported,
                              &error));
  CHECK(vmmshare_memory_size(imported) == 4 << 20);
  CHECK(vmmshare_memory_numa_node(imported) == -1);
  vmmshare_memory_close(imported);
  vmmshare_memory_close(memory);
  for (int i = 0; i < 2; ++i) CHECK(close((int)handles[i].os_handle) == 0);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void MemoryGoesOverAnOwnSocket(void) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  vmmshare_driver* driver = Driver();
  vmmshare_channel* channel = NULL;
  MUST(vmmshare_channel_adopt(ends[child == 0], &channel, &error));
  close(ends[child != 0]);
  if (child == 0) {
    vmmshare_import_options options = {sizeof(options)};
    options.flags = VMMSHARE_IMPORT_HOST_ACCESS;
    vmmshare_memory* memory[2] = {NULL, NULL};
    MUST(vmmshare_channel_receive_memory(channel, driver, &options, 2,
                                         10 * SECOND, memory, &error));
    for (int i = 0; i < 2; ++i) {
      CHECK(*Bytes(vmmshare_memory_address(memory[i])) == 10 + i);
      vmmshare_memory_close(memory[i]);
    }
    vmmshare_channel_close(channel);
    _exit(0);
  }
  vmmshare_device* device = Device(driver);
  vmmshare_memory* memory[2];
  for (int i = 0; i < 2; ++i) {
    memory[i] = HostMemory(device, 4096);
    *Bytes(vmmshare_memory_address(memory[i])) = (unsigned char)(10 + i);
  }
  MUST(vmmshare_channel_send_memory(
      channel, (const vmmshare_memory* const*)memory, 2, 10 * SECOND, &error));
  Join(child);
  FAILS(VMMSHARE_UNAVAILABLE, "",
        vmmshare_channel_send_memory(
            channel, (const vmmshare_memory* const*)memory, 1, SECOND, &error));
  for (int i = 0; i < 2; ++i) vmmshare_memory_close(memory[i]);
  vmmshare_channel_close(channel);
}

// The CPU does not see memory of a device: 4096 bytes there are set, and looked
// at, by copies. The second needs the context that the first makes current.
static void Set(uint64_t address, int value) {
  int (*set)(uint64_t, unsigned char, size_t);
  int (*synchronize)(void);
  Find("cuMemsetD8_v2", &set);
  Find("cuCtxSynchronize", &synchronize);
  EnterContext();
  CHECK(set(address, (unsigned char)value, 4096) == 0 && synchronize() == 0);
}

static int HoldsAll(uint64_t address, int value) {
  int (*copy)(void*, uint64_t, size_t);
  unsigned char bytes[4096];
  unsigned char expected[4096];
  Find("cuMemcpyDtoH_v2", &copy);
  memset(expected, value, sizeof(expected));
  return copy(bytes, address, sizeof(bytes)) == 0 &&
         memcmp(bytes, expected, sizeof(bytes)) == 0;
}

static void MemoryThatWasNotExpectedIsRefused(void) {
  int ends[2];
  vmmshare_channel* channels[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  for (int i = 0; i < 2; ++i) {
    MUST(vmmshare_channel_adopt(ends[i], &channels[i], &error));
  }
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    // It has handles of its own: those of the parent are of no use.
    vmmshare_channel* channel = NULL;
    FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
          vmmshare_channel_send_memory(channels[1], NULL, 0, SECOND, &error));
    MUST(vmmshare_channel_adopt(dup(ends[1]), &channel, &error));
    vmmshare_memory* sent[2];
    vmmshare_device* device = Device(Driver());
    for (int i = 0; i < 2; ++i) sent[i] = HostMemory(device, 4096);
    // Its receiver takes none of the two.
    vmmshare_channel_send_memory(channel, (const vmmshare_memory* const*)sent,
                                 2, 10 * SECOND, NULL);
    _exit(0);
  }
  vmmshare_driver* driver = Driver();
  vmmshare_memory* memory[3] = {(void*)1, (void*)1, (void*)1};
  FAILS(VMMSHARE_FAILED_PRECONDITION, "2 pieces of memory came in one exchange",
        vmmshare_channel_receive_memory(channels[0], driver, NULL, 3,
                                        10 * SECOND, memory, &error));
  for (int i = 0; i < 3; ++i) CHECK(memory[i] == NULL);
  Join(child);
  for (int i = 0; i < 2; ++i) vmmshare_channel_close(channels[i]);
  vmmshare_driver_close(driver);
}

// From other memory of this process, and never beyond its end.
static void MemoryIsWrittenWithinItself(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory* from = HostMemory(device, 4096);
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  // What does not work here is passed over, and it is said why.
  options.kinds = VMMSHARE_KIND_POSIX_FD | VMMSHARE_KIND_WIN32;
  vmmshare_memory* to = NULL;
  MUST(vmmshare_memory_create(device, &options, &to, &error));
  const uint64_t size = vmmshare_memory_size(to);
  const uint64_t source = vmmshare_memory_address(from);
  memset(Bytes(source), 3, 4096);
  const uint64_t wrong[][2] = {
      {size + 1, 0}, {size, 1}, {1, size}, {1, UINT64_MAX}, {UINT64_MAX, 1}};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    FAILS(VMMSHARE_INVALID_ARGUMENT, "bytes to write at offset",
          vmmshare_memory_write(to, wrong[i][0], source, wrong[i][1], &error));
  }
  MUST(vmmshare_memory_write(to, 0, source, 4096, &error));
  EnterContext();
  CHECK(HoldsAll(vmmshare_memory_address(to), 3));
  vmmshare_text* json = NULL;
  MUST(vmmshare_memory_passed_over(to, &json, &error));
  CHECK(vmmshare_text_get(json)[0] == '[');
  vmmshare_text_free(json);
  vmmshare_memory_close(to);
  vmmshare_memory_close(from);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// A child has its parent's handles and can use none.
static void AForkedChildIsRefused(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_pool_options options = {sizeof(options)};
  options.flags = VMMSHARE_ON_HOST;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &options, &pool, &error));
  uint64_t block = 0;
  MUST(vmmshare_pool_allocate(pool, 100, 0, (void*)1, &block, &error));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
          vmmshare_pool_free(pool, block, (void*)1, &error));
    CHECK(vmmshare_device_ordinal(device) == -1);
    vmmshare_pool_close(pool);
    _exit(0);
  }
  Join(child);
  MUST(vmmshare_pool_free(pool, block, (void*)1, &error));
  vmmshare_pool_close(pool);
}

static void AllocatorHooks(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  void* stream = (void*)1;
  CHECK(vmmshare_torch_alloc(4096, 0, stream) == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no pool is set for device 0",
        vmmshare_hooks_last_error(&error));
  MUST(vmmshare_hooks_last_error(&error));

  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, NULL, &pool, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "not of device 1",
        vmmshare_torch_set_pool(1, pool, &error));
  MUST(vmmshare_torch_set_pool(0, pool, &error));
  const uint64_t block =
      (uint64_t)(uintptr_t)vmmshare_torch_alloc(4096, 0, stream);
  CHECK(block != 0);
  // A view into it is found, and what is beside it is not.
  uint64_t base = 0;
  uint64_t size = 0;
  MUST(vmmshare_pool_find(pool, block + 4095, &base, &size, &error));
  CHECK(base == block && size == 4096);
  FAILS(VMMSHARE_NOT_FOUND, "no live block of this pool",
        vmmshare_pool_find(pool, block + 4096, &base, &size, &error));
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_pool_find(pool, block - 1, &base, &size, &error));
  uint64_t own = 0;
  MUST(vmmshare_pool_allocate(pool, 500, 0, stream, &own, &error));
  // One ticket for each block, in the order in which they come.
  const uint64_t inside[4] = {block + 100, own + 499, block, own};
  uint8_t tickets[4 * VMMSHARE_BLOCK_TICKET_BYTES];
  uint8_t expected[2 * VMMSHARE_BLOCK_TICKET_BYTES];
  uint32_t which[4];
  uint64_t offsets[4];
  size_t count = 9;
  MUST(vmmshare_tickets_around(inside, 4, tickets, which, offsets, &count,
                               &error));
  const uint64_t starts[2] = {block, own};
  MUST(vmmshare_pool_tickets(pool, starts, 2, expected, &error));
  CHECK(count == 2 && memcmp(tickets, expected, sizeof(expected)) == 0);
  CHECK(which[0] == 0 && which[1] == 1 && which[2] == 0 && which[3] == 1);
  CHECK(offsets[0] == 100 && offsets[1] == 499 && offsets[2] == 0);
  MUST(vmmshare_tickets_around(NULL, 0, NULL, NULL, NULL, &count, &error));
  CHECK(count == 0);
  MUST(vmmshare_pool_free(pool, own, stream, &error));
  FAILS(VMMSHARE_NOT_FOUND, "no block of a pool of this process",
        vmmshare_tickets_around(&own, 1, tickets, which, offsets, &count,
                                &error));
  // Nothing, also where the first is in a block.
  const uint64_t partly[2] = {block, own};
  count = 9;
  FAILS(VMMSHARE_NOT_FOUND, "no block of a pool of this process",
        vmmshare_tickets_around(partly, 2, tickets, which, offsets, &count,
                                &error));
  CHECK(count == 0);
  CHECK(vmmshare_cupy_malloc(pool, 4096, 1) == NULL);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "not of device 1",
        vmmshare_hooks_last_error(&error));
  void* const cupys = vmmshare_cupy_malloc(pool, 4096, 0);
  CHECK(cupys != NULL);
  vmmshare_cupy_free(pool, cupys, 0);
  MUST(vmmshare_hooks_last_error(&error));
  // The pool stays until what came from it is freed.
  MUST(vmmshare_torch_set_pool(0, NULL, &error));
  vmmshare_pool_close(pool);
  vmmshare_torch_free((void*)(uintptr_t)block, 4096, 0, stream);
  MUST(vmmshare_hooks_last_error(&error));
  vmmshare_torch_free((void*)(uintptr_t)block, 4096, 0, stream);
  FAILS(VMMSHARE_NOT_FOUND, "", vmmshare_hooks_last_error(&error));

  CHECK(vmmshare_cupy_malloc(NULL, 4096, 0) == NULL);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_pool is NULL",
        vmmshare_hooks_last_error(&error));
}

// Each block goes back to the pool from which it came, whichever is set.
static void HooksKnowWhoseABlockIs(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  void* stream = (void*)1;
  vmmshare_pool* pools[2];
  void* blocks[2][2];
  for (int i = 0; i < 2; ++i) {
    MUST(vmmshare_pool_create(device, NULL, &pools[i], &error));
    MUST(vmmshare_torch_set_pool(0, pools[i], &error));
    for (int j = 0; j < 2; ++j) {
      blocks[i][j] = vmmshare_torch_alloc(4096, 0, stream);
      CHECK(blocks[i][j] != NULL);
    }
  }
  CHECK(vmmshare_torch_alloc(SIZE_MAX / 2, 0, stream) == NULL);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "bytes was asked for",
        vmmshare_hooks_last_error(&error));
  CHECK(vmmshare_torch_alloc(0, 0, stream) == NULL);
  CHECK(vmmshare_cupy_malloc(pools[0], 0, 0) == NULL);
  vmmshare_torch_free(NULL, 0, 0, stream);
  MUST(vmmshare_hooks_last_error(&error));
  MUST(vmmshare_torch_set_pool(0, NULL, &error));
  CHECK(vmmshare_torch_alloc(4096, 0, stream) == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no pool is set for device 0",
        vmmshare_hooks_last_error(&error));
  for (int j = 0; j < 2; ++j) {
    for (int i = 1; i >= 0; --i) {
      vmmshare_pool_statistics now = {sizeof(now)};
      MUST(vmmshare_pool_get_statistics(pools[i], &now, &error));
      CHECK(now.live_blocks == (uint64_t)(2 - j));
      vmmshare_torch_free(blocks[i][j], 4096, 0, stream);
      MUST(vmmshare_hooks_last_error(&error));
    }
  }
  for (int i = 0; i < 2; ++i) vmmshare_pool_close(pools[i]);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void PointersAreClassified(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory* memory = HostMemory(device, 4096);
  vmmshare_pointer_info info = {sizeof(info)};
  MUST(vmmshare_classify(driver, vmmshare_memory_address(memory), &info,
                         &error));
  CHECK(info.kind == VMMSHARE_POINTER_VMM);
  CHECK(info.kinds == VMMSHARE_KIND_POSIX_FD);
  CHECK(info.numa_node == 0 && info.device == -1);
  CHECK(vmmshare_memory_numa_node(memory) == 0);
  CHECK(vmmshare_memory_offset(memory) == 0);
  CHECK(vmmshare_memory_offset(NULL) == 0);
  CHECK(info.size == vmmshare_memory_size(memory));
  MUST(vmmshare_classify(driver, (uint64_t)(uintptr_t)&info, &info, &error));
  CHECK(info.kind == VMMSHARE_POINTER_NOT_CUDA && info.adoptable == 0);
  CHECK(info.numa_node == -1);
  CHECK(info.advice[0] != '\0');
  // Memory of the host that no device maps, memory of a device, and none.
  int32_t ordinal = 5;
  MUST(vmmshare_reached_from(driver, vmmshare_memory_address(memory), &ordinal,
                             &error));
  CHECK(ordinal == 0);  // With which it was made.
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  vmmshare_memory* of_device = NULL;
  MUST(vmmshare_memory_create(device, &options, &of_device, &error));
  ordinal = 5;
  MUST(vmmshare_reached_from(driver, vmmshare_memory_address(of_device) + 1,
                             &ordinal, &error));
  CHECK(ordinal == 0);
  MUST(vmmshare_reached_from(driver, (uint64_t)(uintptr_t)&info, &ordinal,
                             &error));
  CHECK(ordinal == -1);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`ordinal` is NULL",
        vmmshare_reached_from(driver, 0, NULL, &error));
  vmmshare_memory_close(of_device);
  vmmshare_memory_close(memory);
}

// What another part of the process made: here the library's own memory.
static void MemoryOfOthersIsAdopted(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_memory* made = HostMemory(device, 4096);
  const uint64_t address = vmmshare_memory_address(made);
  vmmshare_memory* adopted = NULL;
  // On a thread without a context, which has none afterwards, and on one with.
  MUST(vmmshare_memory_adopt(driver, address, 4096, &adopted, &error));
  CHECK(vmmshare_memory_address(adopted) == address);
  CHECK(!HasContext());
  vmmshare_memory_close(adopted);
  EnterContext();
  MUST(vmmshare_memory_adopt(driver, address, 4096, &adopted, &error));
  CHECK(vmmshare_memory_address(adopted) == address);
  CHECK(vmmshare_memory_size(adopted) == 4096);
  // Nothing but what was asked for is disclosed.
  vmmshare_text* json = NULL;
  MUST(vmmshare_memory_neighbours(adopted, &json, &error));
  CHECK(strcmp(vmmshare_text_get(json), "[]\n") == 0);
  vmmshare_text_free(json);
  // It stays when its maker has let go of it, and is shared as any memory.
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  vmmshare_memory* opened = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_memory(server, adopted, &share, &error));
  memset(Bytes(address), 0x5a, 4096);
  vmmshare_import_options import = {sizeof(import)};
  import.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  MUST(vmmshare_memory_open(driver, vmmshare_share_text(share), &import,
                            10 * SECOND, &opened, &error));
  CHECK(Bytes(vmmshare_memory_address(opened))[4095] == 0x5a);
  vmmshare_memory_close(opened);
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(adopted);
  vmmshare_memory_close(made);
}

static vmmshare_status FillWith(void* user, uint64_t address, uint64_t size) {
  CHECK(size == 4096);  // As was asked for, and not as is mapped.
  if (user == NULL) return VMMSHARE_ABORTED;
  if (*(const int*)user == 16) return 16;
  memset(Bytes(address), *(const int*)user, size);
  return VMMSHARE_OK;
}

static void MemoryIsReleasedAndRestored(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  vmmshare_server_options server_options = {sizeof(server_options)};
  server_options.directory = directory;
  vmmshare_server* server = NULL;
  MUST(vmmshare_server_start(&server_options, &server, &error));
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  options.flags = VMMSHARE_ON_HOST;
  vmmshare_restorable* own = NULL;
  MUST(vmmshare_restorable_create(server, device, &options, &own, &error));
  // It keeps the server.
  vmmshare_server_close(server);
  const uint64_t address = vmmshare_restorable_address(own);
  CHECK(vmmshare_restorable_size(own) >= 4096);
  CHECK(vmmshare_restorable_requested_size(own) == 4096);
  memset(Bytes(address), 1, 4096);

  vmmshare_import_options import = {sizeof(import)};
  import.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  vmmshare_restorable* theirs = NULL;
  MUST(vmmshare_restorable_open(driver, vmmshare_restorable_text(own), &import,
                                10 * SECOND, &theirs, &error));
  const uint64_t there = vmmshare_restorable_address(theirs);
  CHECK(Bytes(there)[4095] == 1);
  CHECK(vmmshare_restorable_requested_size(theirs) == 4096);
  CHECK(vmmshare_restorable_text(theirs)[0] == '\0');
  int64_t return_in_ns = 0;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "this process's own",
        vmmshare_restorable_lease(own, &return_in_ns, &error));
  MUST(vmmshare_restorable_lease(theirs, &return_in_ns, &error));
  CHECK(return_in_ns == VMMSHARE_FOREVER);

  // Who has it does not let go: nothing changes, but that it was asked.
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "The memory is as it was",
        vmmshare_restorable_release(own, 0, SECOND / 50, &error));
  CHECK(vmmshare_restorable_is_released(own) == 0);
  CHECK(Bytes(address)[0] == 1);
  while (return_in_ns == VMMSHARE_FOREVER) {
    MUST(vmmshare_restorable_lease(theirs, &return_in_ns, &error));
  }

  FAILS(VMMSHARE_INVALID_ARGUMENT, "flags",
        vmmshare_restorable_release(theirs, VMMSHARE_KEEP_NOTHING, 0, &error));
  MUST(vmmshare_restorable_release(theirs, 0, 0, &error));
  CHECK(vmmshare_restorable_is_released(theirs) == 1);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "released",
        vmmshare_restorable_lease(theirs, &return_in_ns, &error));
  MUST(vmmshare_restorable_release(own, 0, 10 * SECOND, &error));
  CHECK(vmmshare_restorable_is_released(own) == 1);
  FAILS(VMMSHARE_RESOURCE_EXHAUSTED, "released",
        vmmshare_restorable_restore(theirs, NULL, VMMSHARE_FOREVER, &error));
  MUST(vmmshare_restorable_restore(own, NULL, 0, &error));
  MUST(vmmshare_restorable_restore(theirs, NULL, 10 * SECOND, &error));
  CHECK(vmmshare_restorable_address(own) == address);
  CHECK(vmmshare_restorable_address(theirs) == there);
  CHECK(Bytes(address)[0] == 1 && Bytes(there)[4095] == 1);

  MUST(vmmshare_restorable_release(theirs, 0, 0, &error));
  MUST(vmmshare_restorable_release(own, VMMSHARE_KEEP_NOTHING, 10 * SECOND,
                                   &error));
  vmmshare_restore_options restore = {sizeof(restore)};
  FAILS(VMMSHARE_FAILED_PRECONDITION, "kept nothing",
        vmmshare_restorable_restore(own, &restore, 0, &error));
  restore.fill = FillWith;
  FAILS(VMMSHARE_ABORTED, "`fill` returned ABORTED",
        vmmshare_restorable_restore(own, &restore, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "which its owner fills",
        vmmshare_restorable_restore(theirs, &restore, 0, &error));
  restore.path = "/there/is/none";
  FAILS(VMMSHARE_INVALID_ARGUMENT, "both `fill` and `path`",
        vmmshare_restorable_restore(own, &restore, 0, &error));
  restore.fill = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "/there/is/none",
        vmmshare_restorable_restore(own, &restore, 0, &error));
  int filled = 16;
  restore.path = NULL;
  restore.fill = FillWith;
  restore.user = &filled;
  FAILS(VMMSHARE_UNKNOWN, "`fill` returned 16, which is no vmmshare_status",
        vmmshare_restorable_restore(own, &restore, 0, &error));
  filled = 7;
  MUST(vmmshare_restorable_restore(own, &restore, 0, &error));
  MUST(vmmshare_restorable_restore(theirs, NULL, 10 * SECOND, &error));
  CHECK(Bytes(there)[4095] == 7);
  vmmshare_restorable_close(theirs);
  vmmshare_restorable_close(own);
  CHECK(rmdir(directory) == 0);
}

static vmmshare_region_statistics RegionStatistics(
    const vmmshare_region* region) {
  vmmshare_region_statistics now = {sizeof(now)};
  MUST(vmmshare_region_get_statistics(region, &now, &error));
  return now;
}

static void ARegionIsReleasedAndRestored(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_region* region = NULL;
  MUST(vmmshare_region_create(device, &region, &error));
  uint64_t at[3];
  for (int i = 0; i < 3; ++i) {
    MUST(vmmshare_region_allocate(region, 4096, &at[i], &error));
    Set(at[i], i + 1);
  }
  FAILS(VMMSHARE_FAILED_PRECONDITION, "not released",
        vmmshare_region_restore(region, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "flags",
        vmmshare_region_release(region, 2, &error));
  MUST(vmmshare_region_release(region, 0, &error));
  vmmshare_region_statistics now = RegionStatistics(region);
  CHECK(now.allocations == 3 && now.is_released == 1);
  CHECK(now.bytes >= 3 * 4096 && now.kept == now.bytes);
  uint64_t more = 1;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "Restore() it first",
        vmmshare_region_allocate(region, 4096, &more, &error));
  CHECK(more == 0);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "that is released",
        vmmshare_region_release(region, 0, &error));
  MUST(vmmshare_region_free(region, at[2], &error));
  FAILS(VMMSHARE_NOT_FOUND, "no allocation of this region begins there",
        vmmshare_region_free(region, at[2], &error));
  MUST(vmmshare_region_restore(region, &error));
  for (int i = 0; i < 2; ++i) CHECK(HoldsAll(at[i], i + 1));

  MUST(vmmshare_region_release(region, VMMSHARE_KEEP_NOTHING, &error));
  CHECK(RegionStatistics(region).kept == 0);
  MUST(vmmshare_region_restore(region, &error));
  Set(at[1], 9);
  CHECK(HoldsAll(at[1], 9));
  now = RegionStatistics(region);
  CHECK(now.allocations == 2 && now.is_released == 0);
  now.struct_size = 8;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_region_statistics",
        vmmshare_region_get_statistics(region, &now, &error));
  vmmshare_region_close(region);
}

static void* FromRegion(void) {
  return vmmshare_torch_region_alloc(4096, 0, (void*)1);
}

// What is freed may be in use still by work that was put on the stream before.
static void FreeWhileTheStreamIsAtWork(void) {
  const size_t size = (size_t)256 << 20;
  int (*create)(void**, unsigned);
  int (*set)(uint64_t, unsigned char, size_t, void*);
  int (*synchronize)(void*);
  void* stream = NULL;
  Find("cuStreamCreate", &create);
  Find("cuMemsetD8Async", &set);
  Find("cuStreamSynchronize", &synchronize);
  CHECK(create(&stream, 1) == 0);
  void* const block = vmmshare_torch_region_alloc(size, 0, stream);
  CHECK(block != NULL);
  for (int i = 0; i < 4; ++i) {
    CHECK(set((uint64_t)(uintptr_t)block, 1, size, stream) == 0);
  }
  vmmshare_torch_region_free(block, size, 0, stream);
  CHECK(synchronize(stream) == 0);
  MUST(vmmshare_hooks_last_error(&error));
}

static int IsCaptured(const vmmshare_driver* driver, void* stream) {
  int32_t is_captured = 7;
  MUST(vmmshare_stream_is_captured(driver, stream, &is_captured, &error));
  CHECK(is_captured == 0 || is_captured == 1);
  return is_captured;
}

// It waits for the stream, which the capture of another one survives.
static void FreeBesideACapture(vmmshare_region* region) {
  int (*create)(void**, unsigned);
  int (*begin)(void*, int);
  int (*end)(void*, void**);
  int (*destroy_graph)(void*);
  int (*destroy)(void*);
  Find("cuStreamCreate", &create);
  Find("cuStreamBeginCapture_v2", &begin);
  Find("cuStreamEndCapture", &end);
  Find("cuGraphDestroy", &destroy_graph);
  Find("cuStreamDestroy_v2", &destroy);
  void* captured = NULL;
  void* other = NULL;
  CHECK(create(&captured, 1) == 0 && create(&other, 1) == 0);
  const uint64_t before = RegionStatistics(region).allocations;
  void* const block = vmmshare_torch_region_alloc(4096, 0, other);
  void* const next = vmmshare_torch_region_alloc(4096, 0, captured);
  CHECK(block != NULL && next != NULL);
  vmmshare_driver* const driver = Driver();
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`is_captured` is NULL",
        vmmshare_stream_is_captured(driver, captured, NULL, &error));
  CHECK(!IsCaptured(driver, captured));
  CHECK(begin(captured, 0) == 0);  // Of the global mode.
  CHECK(IsCaptured(driver, captured) && !IsCaptured(driver, other));
  vmmshare_torch_region_free(block, 4096, 0, other);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(RegionStatistics(region).allocations == before + 1);
  // On the stream itself nothing is freed.
  vmmshare_torch_region_free(next, 4096, 0, captured);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "is being captured into a graph",
        vmmshare_hooks_last_error(&error));
  CHECK(RegionStatistics(region).allocations == before + 1);
  void* graph = NULL;
  CHECK(end(captured, &graph) == 0);
  CHECK(!IsCaptured(driver, captured));
  vmmshare_driver_close(driver);
  CHECK(destroy_graph(graph) == 0);
  vmmshare_torch_region_free(next, 4096, 0, captured);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(RegionStatistics(region).allocations == before);
  CHECK(destroy(captured) == 0 && destroy(other) == 0);
}

typedef struct Race {
  pthread_barrier_t step;
  vmmshare_region* region;
  vmmshare_status released;
} Race;

enum { kRaces = 20, kRacers = 3 };

static void Meet(Race* race) {
  const int met = pthread_barrier_wait(&race->step);
  CHECK(met == 0 || met == PTHREAD_BARRIER_SERIAL_THREAD);
}

// Until the region is being restored, which takes longer.
static void WaitAMoment(void) {
  const struct timespec moment = {0, 300 * 1000};
  CHECK(nanosleep(&moment, NULL) == 0);
}

static void* RestoreAgainAndAgain(void* given) {
  Race* const race = (Race*)given;
  for (int i = 0; i < kRaces; ++i) {
    Meet(race);
    CHECK(vmmshare_region_restore(race->region, NULL) == VMMSHARE_OK);
    Meet(race);
  }
  return NULL;
}

static void* ReleaseAgainAndAgain(void* given) {
  Race* const race = (Race*)given;
  for (int i = 0; i < kRaces; ++i) {
    Meet(race);
    WaitAMoment();
    race->released = vmmshare_region_release(race->region, 0, NULL);
    Meet(race);
  }
  return NULL;
}

// Of two threads, one of which sets a region and the other releases it, both of
// which have to wait for a third that restores it, not both may.
static void OneOfTwoHasTheRegion(const vmmshare_device* device) {
  Race race;
  MUST(vmmshare_region_create(device, &race.region, &error));
  for (int i = 0; i < 8; ++i) {
    uint64_t at = 0;
    MUST(vmmshare_region_allocate(race.region, 4096, &at, &error));
  }
  CHECK(pthread_barrier_init(&race.step, NULL, kRacers) == 0);
  pthread_t restores;
  pthread_t releases;
  CHECK(pthread_create(&restores, NULL, &RestoreAgainAndAgain, &race) == 0);
  CHECK(pthread_create(&releases, NULL, &ReleaseAgainAndAgain, &race) == 0);
  for (int i = 0; i < kRaces; ++i) {
    if (RegionStatistics(race.region).is_released == 0) {
      MUST(vmmshare_region_release(race.region, 0, &error));
    }
    Meet(&race);
    WaitAMoment();
    const vmmshare_status set = vmmshare_torch_set_region(0, race.region, NULL);
    Meet(&race);
    CHECK(set != VMMSHARE_OK || race.released != VMMSHARE_OK);
    MUST(vmmshare_torch_set_region(0, NULL, &error));
  }
  CHECK(pthread_join(restores, NULL) == 0);
  CHECK(pthread_join(releases, NULL) == 0);
  CHECK(pthread_barrier_destroy(&race.step) == 0);
  vmmshare_region_close(race.region);
}

static void RegionHooks(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  void* stream = (void*)1;
  CHECK(FromRegion() == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no region is set for device 0",
        vmmshare_hooks_last_error(&error));
  vmmshare_region* weights = NULL;
  vmmshare_region* cache = NULL;
  MUST(vmmshare_region_create(device, &weights, &error));
  MUST(vmmshare_region_create(device, &cache, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "not of device 1",
        vmmshare_torch_set_region(1, weights, &error));
  MUST(vmmshare_torch_set_region(0, weights, &error));
  // One at a time.
  FAILS(VMMSHARE_FAILED_PRECONDITION, "for which of two it asks",
        vmmshare_torch_set_region(0, cache, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "for which of two it asks",
        vmmshare_torch_set_region(0, weights, &error));
  void* const weight = FromRegion();
  CHECK(weight != NULL);
  Set((uint64_t)(uintptr_t)weight, 1);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "PyTorch takes memory from the region",
        vmmshare_region_release(weights, 0, &error));
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  CHECK(FromRegion() == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no region is set",
        vmmshare_hooks_last_error(&error));
  MUST(vmmshare_torch_set_region(0, cache, &error));
  void* const block = FromRegion();
  CHECK(block != NULL);
  // That one may be released meanwhile.
  MUST(vmmshare_region_release(weights, 0, &error));
  CHECK(RegionStatistics(weights).allocations == 1);
  CHECK(RegionStatistics(cache).allocations == 1);
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "the region is released",
        vmmshare_torch_set_region(0, weights, &error));
  MUST(vmmshare_region_restore(weights, &error));
  CHECK(HoldsAll((uint64_t)(uintptr_t)weight, 1));

  MUST(vmmshare_torch_set_region(0, weights, &error));
  FreeWhileTheStreamIsAtWork();
  FreeBesideACapture(weights);
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  // A free finds the region from which it came, also when another one is set,
  // or when it is released.
  MUST(vmmshare_torch_set_region(0, weights, &error));
  MUST(vmmshare_region_release(cache, 0, &error));
  vmmshare_torch_region_free(block, 4096, 0, stream);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(RegionStatistics(cache).allocations == 0);
  CHECK(RegionStatistics(weights).allocations == 1);
  vmmshare_torch_region_free(block, 4096, 0, stream);
  FAILS(VMMSHARE_NOT_FOUND, "in no memory that a region of this process gave",
        vmmshare_hooks_last_error(&error));
  // What it gave out outlives it.
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  vmmshare_region_close(weights);
  vmmshare_region_close(cache);
  CHECK(HoldsAll((uint64_t)(uintptr_t)weight, 1));
  vmmshare_torch_region_free(weight, 4096, 0, stream);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(vmmshare_torch_region_alloc(0, 0, stream) == NULL);
  vmmshare_torch_region_free(NULL, 0, 0, stream);
  MUST(vmmshare_hooks_last_error(&error));
  OneOfTwoHasTheRegion(device);
}

// Nobody knows whether work still uses it: it stays mapped, and is the region's.
static void WhatAFailedStreamMayUseStays(void) {
  CHECK(setenv("VMMSHARE_HOST_FAIL", "cuMemFreeHost:1:ECC_UNCORRECTABLE", 1) ==
        0);
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_region* region = NULL;
  MUST(vmmshare_region_create(device, &region, &error));
  MUST(vmmshare_torch_set_region(0, region, &error));
  void* const block = FromRegion();
  CHECK(block != NULL);
  Set((uint64_t)(uintptr_t)block, 1);
  vmmshare_torch_region_free(block, 4096, 0, (void*)1);
  vmmshare_error* why = NULL;
  CHECK(vmmshare_hooks_last_error(&why) == VMMSHARE_INTERNAL);
  CHECK(vmmshare_error_cuda_result(why) == 214);  // ECC_UNCORRECTABLE.
  CHECK(strstr(vmmshare_error_message(why), "wait for the device") != NULL);
  vmmshare_error_free(why);
  CHECK(RegionStatistics(region).allocations == 1);
  CHECK(HoldsAll((uint64_t)(uintptr_t)block, 1));
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  // It can be freed again, once.
  vmmshare_torch_region_free(block, 4096, 0, (void*)1);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(RegionStatistics(region).allocations == 0);
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_region_free(region, (uint64_t)(uintptr_t)block, &error));
  vmmshare_torch_region_free(block, 4096, 0, (void*)1);
  FAILS(VMMSHARE_NOT_FOUND, "in no memory that a region of this process gave",
        vmmshare_hooks_last_error(&error));
  vmmshare_region_close(region);
}

// A layout of a tensor of 4 x 6 int32, and one of its columns as an alias.
static vmmshare_weights_layout* Layout(void) {
  vmmshare_weights_layout* layout = NULL;
  char name[258];
  memset(name, 'x', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  FAILS(VMMSHARE_INVALID_ARGUMENT, "a fingerprint of 257 bytes",
        vmmshare_weights_layout_create(name, &layout, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "at most 256 of printable ASCII",
        vmmshare_weights_layout_create("gr\xc3\xbcn", &layout, &error));
  CHECK(layout == NULL);
  MUST(vmmshare_weights_layout_create(name + 1, &layout, &error));
  vmmshare_weights_layout_close(layout);
  MUST(vmmshare_weights_layout_create("sha256:7", &layout, &error));
  MUST(vmmshare_weights_layout_note(layout, "step", "6", &error));
  MUST(vmmshare_weights_layout_note(layout, "step", "7", &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT,
        "metadata \"\", a key of 0 bytes with a value of 1; expected",
        vmmshare_weights_layout_note(layout, "", "8", &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "without NUL of at most 67108864 bytes",
        vmmshare_weights_layout_note(layout, "", "8", &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "a key of 1 to 512 of printable ASCII",
        vmmshare_weights_layout_note(layout, "schritt\xc3\xbc", "8", &error));
  const int64_t shape[] = {4, 6};
  const int64_t column_shape[] = {4};
  const int64_t column_strides[] = {6};
  vmmshare_tensor tensor = {sizeof(tensor), "table"};
  tensor.dtype = VMMSHARE_DTYPE_INT32;
  tensor.rank = 2;
  tensor.shape = shape;
  uint64_t table = 7;
  MUST(vmmshare_weights_layout_add(layout, &tensor, &table, &error));
  FAILS(VMMSHARE_ALREADY_EXISTS, "table",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  tensor.name = "column";
  tensor.rank = 1;
  tensor.shape = column_shape;
  tensor.strides = column_strides;
  tensor.offset = 2 * sizeof(int32_t);
  tensor.alias_of = (uint32_t)table;
  tensor.flags = VMMSHARE_TENSOR_ALIAS;
  MUST(vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  tensor.name = "outside";
  tensor.offset = 7 * sizeof(int32_t);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "outside",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  tensor.alias_of = 9;
  FAILS(VMMSHARE_NOT_FOUND, "9",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  const uint32_t no_types[] = {0, 99, 255, 256 + VMMSHARE_DTYPE_INT32};
  for (size_t i = 0; i < sizeof(no_types) / sizeof(no_types[0]); ++i) {
    tensor.dtype = no_types[i];
    FAILS(VMMSHARE_INVALID_ARGUMENT, "expected one of VMMSHARE_DTYPE_*",
          vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  }
  tensor.rank = 33;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "33 dimensions; at most 32",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  tensor.flags = 64;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "flags",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  tensor.flags = 0;
  tensor.reserved = 7;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "reserved",
        vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  return layout;
}

static vmmshare_status Told(void* user, uint64_t done, uint64_t total) {
  uint64_t* told = user;
  *told = done;
  return total == 96 ? VMMSHARE_OK : VMMSHARE_ABORTED;
}

// Into the table, of 96 bytes.
static void TensorsAreReadFromFiles(vmmshare_weights_writer* writer,
                                    const int32_t* numbers) {
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  char path[64];
  snprintf(path, sizeof(path), "%s/weights", directory);
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL && fwrite(numbers, 1, 96, file) == 96);
  CHECK(fclose(file) == 0);
  const char* paths[] = {"/no/file", path};
  vmmshare_file_read reads[] = {{0, 1, 0, 12, 24}, {0, 1, 12, 12, 24}};
  uint64_t told = 0;
  vmmshare_read_options options = {sizeof(options)};
  options.threads = 2;
  options.progress = &Told;
  options.user = &told;
  MUST(vmmshare_weights_read_files(writer, paths + 1, 1, reads, 0, NULL,
                                   &error));
  MUST(vmmshare_weights_read_files(writer, NULL, 0, NULL, 0, NULL, &error));
  FAILS(VMMSHARE_NOT_FOUND, "/no/file",
        vmmshare_weights_read_files(writer, paths, 2, reads, 2, NULL, &error));
  FAILS(VMMSHARE_OUT_OF_RANGE, "file 1 of 1",
        vmmshare_weights_read_files(writer, paths + 1, 1, reads, 2, NULL,
                                    &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "reads",
        vmmshare_weights_read_files(writer, paths, 2, NULL, 2, NULL, &error));
  reads[0].path = reads[1].path = 0;
  MUST(vmmshare_weights_read_files(writer, paths + 1, 1, reads, 2, &options,
                                   &error));
  CHECK(told == 96);
  FAILS(VMMSHARE_ABORTED, "progress",
        vmmshare_weights_read_files(writer, paths + 1, 1, reads, 0, &options,
                                    &error));
  reads[1].offset = 24;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "table",
        vmmshare_weights_read_files(writer, paths + 1, 1, reads, 2, &options,
                                    &error));
  reads[1].offset = 16;  // Of a pitch of 28 the file has too little.
  reads[0].pitch = reads[1].pitch = 28;
  FAILS(VMMSHARE_DATA_LOSS, path,
        vmmshare_weights_read_files(writer, paths + 1, 1, reads, 2, &options,
                                    &error));
  options.reserved = 1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "reserved",
        vmmshare_weights_read_files(writer, paths + 1, 1, reads, 2, &options,
                                    &error));
  CHECK(remove(path) == 0 && rmdir(directory) == 0);
}

// Writes the header and `data` bytes of zeros.
static void WriteSafetensors(const char* path, const char* json, size_t data) {
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL);
  for (int i = 0; i < 8; ++i) {
    CHECK(fputc((int)((uint64_t)strlen(json) >> (8 * i) & 255), file) != EOF);
  }
  CHECK(fputs(json, file) != EOF);
  for (size_t i = 0; i < data; ++i) CHECK(fputc(0, file) != EOF);
  CHECK(fclose(file) == 0);
}

static void HeadersOfSafetensorsAreRead(void) {
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  char path[64];
  snprintf(path, sizeof(path), "%s/x.safetensors", directory);
  const char* json =
      "{\"__metadata__\":{\"step\":\"7\"},\"a\":{\"dtype\":\"I32\","
      "\"shape\":[2,3],\"data_offsets\":[0,24]}}";
  WriteSafetensors(path, json, 24);
  vmmshare_safetensors* header = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "/no/file",
        vmmshare_safetensors_open("/no/file", &header, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "path",
        vmmshare_safetensors_open(NULL, &header, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "header",
        vmmshare_safetensors_open(path, NULL, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_safetensors is NULL",
        vmmshare_safetensors_metadata(NULL, &(vmmshare_text*){NULL}, &error));
  MUST(vmmshare_safetensors_open(path, &header, &error));
  CHECK(vmmshare_safetensors_count(header) == 1);
  CHECK(vmmshare_safetensors_count(NULL) == 0);
  vmmshare_tensor tensor = {sizeof(tensor)};
  MUST(vmmshare_safetensors_tensor(header, 0, &tensor, &error));
  CHECK(strcmp(tensor.name, "a") == 0 && tensor.dtype == VMMSHARE_DTYPE_INT32);
  CHECK(tensor.rank == 2 && tensor.shape[1] == 3 && tensor.strides[0] == 3);
  CHECK(tensor.offset == 8 + strlen(json) && tensor.bytes == 24);
  // It goes to a layout as it is.
  vmmshare_weights_layout* layout = NULL;
  MUST(vmmshare_weights_layout_create(NULL, &layout, &error));
  MUST(vmmshare_weights_layout_add(layout, &tensor, NULL, &error));
  vmmshare_weights_layout_close(layout);
  FAILS(VMMSHARE_OUT_OF_RANGE, "tensor 1 of 1",
        vmmshare_safetensors_tensor(header, 1, &tensor, &error));
  vmmshare_text* text = NULL;
  MUST(vmmshare_safetensors_metadata(header, &text, &error));
  CHECK(strstr(vmmshare_text_get(text), "\"step\": \"7\"") != NULL);
  vmmshare_text_free(text);
  vmmshare_safetensors_close(header);
  vmmshare_safetensors_close(NULL);
  WriteSafetensors(path, json, 23);
  FAILS(VMMSHARE_INVALID_ARGUMENT, path,
        vmmshare_safetensors_open(path, &header, &error));
  CHECK(remove(path) == 0 && rmdir(directory) == 0);
}

static void TensorSetsAreReadAsTheyWereWritten(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_weights_layout* layout = Layout();
  vmmshare_tensor tensor = {sizeof(tensor)};
  MUST(vmmshare_weights_layout_tensor(layout, 0, &tensor, &error));
  CHECK(tensor.bytes == 96 && tensor.strides[0] == 6);
  vmmshare_memory* memory =
      HostMemory(device, vmmshare_weights_layout_size(layout));
  vmmshare_weights* weights = NULL;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no sealed tensor set",
        vmmshare_weights_open(driver, memory, &weights, &error));
  vmmshare_weights_writer* writer = NULL;
  MUST(vmmshare_weights_begin(driver, memory, layout, &writer, &error));
  vmmshare_weights_layout_close(layout);
  int32_t numbers[24];
  for (int i = 0; i < 24; ++i) numbers[i] = i;
  FAILS(VMMSHARE_OUT_OF_RANGE, "table",
        vmmshare_weights_write(writer, 0, 4, numbers, 96, &error));
  FAILS(VMMSHARE_NOT_FOUND, "/no/file",
        vmmshare_weights_read_file(writer, 0, "/no/file", 0, &error));
  FAILS(VMMSHARE_NOT_FOUND, "/no/file",
        vmmshare_weights_read_rows(writer, 0, "/no/file", 0, 48, 96, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "table",
        vmmshare_weights_read_rows(writer, 0, "/no/file", 0, 48, 47, &error));
  TensorsAreReadFromFiles(writer, numbers);
  const uint64_t places[2] = {1, 7};
  MUST(vmmshare_weights_copy_all(writer, NULL, NULL, 0, NULL, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "places",
        vmmshare_weights_copy_all(writer, NULL, places, 1, NULL, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "addresses",
        vmmshare_weights_copy_all(writer, places, NULL, 1, NULL, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "flags",
        vmmshare_weights_copy_all(writer, NULL, NULL, 0, NULL, 2, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "is an alias",
        vmmshare_weights_copy_all(writer, places, places, 1, NULL, 0, &error));
  FAILS(VMMSHARE_OUT_OF_RANGE, "tensor 7 of 2",
        vmmshare_weights_copy_all(writer, places + 1, places, 1, NULL,
                                  VMMSHARE_WEIGHTS_FROM_DEVICE, &error));
  MUST(vmmshare_weights_write(writer, 0, 0, NULL, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`bytes` is NULL",
        vmmshare_weights_write(writer, 0, 0, NULL, 1, &error));
  MUST(vmmshare_weights_write(writer, 0, 0, numbers, 96, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "generation",
        vmmshare_weights_seal(writer, 0, 0, &error));
  MUST(vmmshare_weights_seal(writer, 3, VMMSHARE_WEIGHTS_CHECKSUM_ALL, &error));
  vmmshare_weights_writer_close(writer);

  MUST(vmmshare_weights_open(driver, memory, &weights, &error));
  CHECK(vmmshare_weights_count(weights) == 2);
  CHECK(vmmshare_weights_generation(weights) == 3);
  CHECK(strcmp(vmmshare_weights_fingerprint(weights), "sha256:7") == 0);
  vmmshare_text* json = NULL;
  MUST(vmmshare_weights_metadata(weights, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"step\": \"7\"") != NULL);
  vmmshare_text_free(json);
  uint64_t place = 0;
  MUST(vmmshare_weights_find(weights, "column", &place, &error));
  MUST(vmmshare_weights_tensor(weights, place, &tensor, &error));
  CHECK(tensor.flags == VMMSHARE_TENSOR_ALIAS && tensor.alias_of == 0);
  const unsigned char* column =
      Bytes(vmmshare_memory_address(memory) + tensor.offset);
  int32_t third = 0;
  memcpy(&third, column + 2 * tensor.strides[0] * sizeof(third), sizeof(third));
  CHECK(third == 14);
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_weights_find(weights, "row", &place, &error));
  FAILS(VMMSHARE_OUT_OF_RANGE, "2",
        vmmshare_weights_tensor(weights, 2, &tensor, &error));
  uint64_t compared = 0;
  MUST(vmmshare_weights_verify(weights, &compared, &error));
  CHECK(compared == 1);
  MUST(vmmshare_weights_verify(weights, NULL, &error));
  MUST(vmmshare_weights_tensor(weights, 0, &tensor, &error));
  CHECK(tensor.flags == VMMSHARE_TENSOR_CHECKSUM && tensor.checksum != 0);
  Bytes(vmmshare_memory_address(memory))[5] ^= 1;
  FAILS(VMMSHARE_DATA_LOSS, "table",
        vmmshare_weights_verify(weights, &compared, &error));
  vmmshare_weights_close(weights);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_weights",
        vmmshare_weights_verify(NULL, &compared, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_weights_writer",
        vmmshare_weights_copy(NULL, 0, 0, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_weights_writer",
        vmmshare_weights_publish(NULL, NULL, "a", memory, 0, 0, NULL, &error));
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void AWriterAndASetHaveTheirMemoryAfterItIsClosed(void) {
  vmmshare_driver* driver = Driver();
  vmmshare_device* device = Device(driver);
  vmmshare_weights_layout* layout = Layout();
  int32_t numbers[24];
  for (int i = 0; i < 24; ++i) numbers[i] = i;
  for (int has_set = 0; has_set < 2; ++has_set) {
    vmmshare_memory* memory =
        HostMemory(device, vmmshare_weights_layout_size(layout));
    const int32_t* const first =
        (const int32_t*)Bytes(vmmshare_memory_address(memory));
    vmmshare_weights_writer* writer = NULL;
    MUST(vmmshare_weights_begin(driver, memory, layout, &writer, &error));
    if (has_set == 0) vmmshare_memory_close(memory);
    MUST(vmmshare_weights_write(writer, 0, 0, numbers, 96, &error));
    MUST(vmmshare_weights_seal(writer, 1, VMMSHARE_WEIGHTS_CHECKSUM_ALL,
                               &error));
    CHECK(first[23] == 23);
    vmmshare_weights_writer_close(writer);
    if (has_set == 0) continue;
    vmmshare_weights* weights = NULL;
    MUST(vmmshare_weights_open(driver, memory, &weights, &error));
    vmmshare_memory_close(memory);
    uint64_t compared = 0;
    MUST(vmmshare_weights_verify(weights, &compared, &error));
    CHECK(compared == 1 && first[23] == 23);
    vmmshare_weights_close(weights);
  }
  vmmshare_weights_layout_close(layout);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void DevicesAreListed(void) {
  vmmshare_driver* driver = Driver();
  int32_t count = 0;
  MUST(vmmshare_device_count(driver, &count, &error));
  CHECK(count == 2);
  CHECK(vmmshare_driver_version(driver) >= 11030);
  uint8_t uuid[16];
  for (int32_t i = 0; i < count; ++i) {
    vmmshare_device* device = NULL;
    vmmshare_device* same = NULL;
    MUST(vmmshare_device_open(driver, i, &device, &error));
    vmmshare_device_uuid(device, uuid);
    MUST(vmmshare_device_open_uuid(driver, uuid, &same, &error));
    CHECK(vmmshare_device_ordinal(same) == i);
    CHECK(strncmp(vmmshare_device_uuid_text(device), "GPU-", 4) == 0);
    CHECK(vmmshare_device_name(device)[0] != '\0');
    MUST(vmmshare_device_probe(device, VMMSHARE_KIND_POSIX_FD, &error));
    vmmshare_device_close(device);
    vmmshare_device_close(same);
  }
  vmmshare_device* none = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_device_open(driver, count, &none, &error));
  vmmshare_text* json = NULL;
  vmmshare_text* text = NULL;
  MUST(vmmshare_doctor(driver_path, &json, &error));
  CHECK(vmmshare_text_get(json)[0] == '{');
  vmmshare_text_free(json);
  MUST(vmmshare_doctor_report(driver_path, &json, &text, &error));
  CHECK(vmmshare_text_get(json)[0] == '{');
  CHECK(strncmp(vmmshare_text_get(text), "driver:", 7) == 0);
  vmmshare_text_free(json);
  vmmshare_text_free(text);
}

// The tool in a program that was started with standard streams closed, from
// `first` to standard output.
static void DoctorWithout(int first) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char driver[4096];
    CHECK(strlen(driver_path) + sizeof("--driver=") <= sizeof(driver));
    strcat(strcpy(driver, "--driver="), driver_path);
    const char* const words[] = {"doctor", driver};
    for (int fd = first; fd <= STDOUT_FILENO; ++fd) close(fd);
    CHECK(vmmshare_main(2, words) == 1);
    for (int fd = first; fd <= STDOUT_FILENO; ++fd) {
      struct stat stream;
      CHECK(fstat(fd, &stream) == 0 && S_ISCHR(stream.st_mode));
    }
    _exit(0);
  }
  Join(child);
}

static void AReportThatNobodyGetsIsAnError(void) {
  DoctorWithout(STDOUT_FILENO);
  DoctorWithout(STDIN_FILENO);
}

static const struct {
  const char* name;
  void (*run)(void);
} kCases[] = {
    {"MemoryIsSharedByText", MemoryIsSharedByText},
    {"ANullStreamOfEachThreadIsRefused", ANullStreamOfEachThreadIsRefused},
    {"BlocksAndFencesAreSharedByTickets", BlocksAndFencesAreSharedByTickets},
    {"FencesLieInDeviceMemory", FencesLieInDeviceMemory},
    {"MemoryIsDescribedForNetworkCards", MemoryIsDescribedForNetworkCards},
    {"BadArgumentsAreRefused", BadArgumentsAreRefused},
    {"OptionsOfOtherSizes", OptionsOfOtherSizes},
    {"OptionsThatMeanNothing", OptionsThatMeanNothing},
    {"SymmetricMemoryIsCut", SymmetricMemoryIsCut},
    {"RawHandlesGoOutAndIn", RawHandlesGoOutAndIn},
    {"MemoryGoesOverAnOwnSocket", MemoryGoesOverAnOwnSocket},
    {"AForkedChildIsRefused", AForkedChildIsRefused},
    {"HooksOfAForkedChildWaitForNobody", HooksOfAForkedChildWaitForNobody},
    {"AForkedChildHasPoolsOfItsOwn", AForkedChildHasPoolsOfItsOwn},
    {"AllocatorHooks", AllocatorHooks},
    {"HooksKnowWhoseABlockIs", HooksKnowWhoseABlockIs},
    {"MemoryIsWrittenWithinItself", MemoryIsWrittenWithinItself},
    {"MemoryThatWasNotExpectedIsRefused", MemoryThatWasNotExpectedIsRefused},
    {"PointersAreClassified", PointersAreClassified},
    {"MemoryOfOthersIsAdopted", MemoryOfOthersIsAdopted},
    {"MemoryIsReleasedAndRestored", MemoryIsReleasedAndRestored},
    {"ARegionIsReleasedAndRestored", ARegionIsReleasedAndRestored},
    {"RegionHooks", RegionHooks},
    {"WhatAFailedStreamMayUseStays", WhatAFailedStreamMayUseStays},
    {"HeadersOfSafetensorsAreRead", HeadersOfSafetensorsAreRead},
    {"TensorSetsAreReadAsTheyWereWritten", TensorSetsAreReadAsTheyWereWritten},
    {"AWriterAndASetHaveTheirMemoryAfterItIsClosed",
     AWriterAndASetHaveTheirMemoryAfterItIsClosed},
    {"DevicesAreListed", DevicesAreListed},
    {"AReportThatNobodyGetsIsAnError", AReportThatNobodyGetsIsAnError},
    {"BuffersGoThroughARing", BuffersGoThroughARing},
    {"ARingIsAborted", ARingIsAborted},
    {"AnExchangeThatFailsIsNamed", AnExchangeThatFailsIsNamed},
    {"ARankWithoutADeviceTakesPart", ARankWithoutADeviceTakesPart},
    {"WhatAnExchangeSaysIsChecked", WhatAnExchangeSaysIsChecked},
    {"MemoryOfTheDriverIsAdopted", MemoryOfTheDriverIsAdopted},
    {"ImportedMemoryIsDescribed", ImportedMemoryIsDescribed},
    {"MemoryIsPlaced", MemoryIsPlaced},
    {"AServerHasItsLimits", AServerHasItsLimits},
    {"AnOwnerThatHasEndedWantsNothingBack",
     AnOwnerThatHasEndedWantsNothingBack},
    {"FencesAreMadeByTheirOwner", FencesAreMadeByTheirOwner},
    {"WhatAForkedProcessMayUseIsQuarantined",
     WhatAForkedProcessMayUseIsQuarantined},
    {"OtherMemoryThanTheWritersIsRefused", OtherMemoryThanTheWritersIsRefused},
    {"SignalsAreAsTheyWereAfterATool", SignalsAreAsTheyWereAfterATool},
    {"TheToolShowsWhatIsKept", TheToolShowsWhatIsKept},
    {"BlocksAreAskedBack", BlocksAreAskedBack},
    {"WhoClosesTheLastBlockWaitsForNobody",
     WhoClosesTheLastBlockWaitsForNobody},
    {"WhoClosesAPoolWaitsForNoStream", WhoClosesAPoolWaitsForNoStream},
    {"APoolEndsWithItsLastBlock", APoolEndsWithItsLastBlock},
    {"APoolIsAsLargeAsItMayBe", APoolIsAsLargeAsItMayBe},
    {"WhatADeviceCannotIsTold", WhatADeviceCannotIsTold},
};

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  program = argv[0];
  driver_path = argv[1];
  if (strcmp(argv[2], "peer-memory") == 0) {
    CHECK(argc == 4);
    PeerMemory(argv[3]);
    return 0;
  }
  if (strcmp(argv[2], "peer-pool") == 0) {
    CHECK(argc == 7);
    PeerPool(argv[3], argv[4], argv[5], argv[6]);
    return 0;
  }
  for (size_t i = 0; i < sizeof(kCases) / sizeof(kCases[0]); ++i) {
    if (strcmp(argv[2], kCases[i].name) != 0) continue;
    kCases[i].run();
    printf("passed: %s\n", argv[2]);
    return 0;
  }
  fprintf(stderr, "no case %s\n", argv[2]);
  return 2;
}
