// Blocks of a pool that are given out, asked back and returned, with owner and
// importer in one process.
#define _POSIX_C_SOURCE 200809L

#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "tests/c/c_test.h"

enum { kBlocks = 2, kTicket = VMMSHARE_BLOCK_TICKET_BYTES };

static void* const kStream = (void*)1;  // CU_STREAM_LEGACY.

typedef struct {
  vmmshare_driver* driver;
  vmmshare_device* device;
  vmmshare_pool* pool;
  uint64_t addresses[kBlocks];
  vmmshare_server* server;
  vmmshare_share* share;
  vmmshare_imported_pool* imported;
  vmmshare_block* blocks[kBlocks];
} Shared;

static Shared Open(void) {
  Shared all = {Driver()};
  all.device = Device(all.driver);
  vmmshare_pool_options options = {sizeof(options)};
  options.flags = VMMSHARE_RDMA_TRY;
  MUST(vmmshare_pool_create(all.device, &options, &all.pool, &error));
  for (int i = 0; i < kBlocks; ++i) {
    MUST(vmmshare_pool_allocate(all.pool, 4096, 512, kStream, &all.addresses[i],
                                &error));
    CHECK(all.addresses[i] % 512 == 0);
  }
  MUST(vmmshare_server_start(NULL, &all.server, &error));
  MUST(vmmshare_server_share_pool(all.server, all.pool, &all.share, &error));
  MUST(vmmshare_imported_pool_open(all.driver, vmmshare_share_text(all.share),
                                   NULL, 10 * SECOND, &all.imported, &error));
  uint8_t tickets[kBlocks * kTicket];
  MUST(
      vmmshare_pool_tickets(all.pool, all.addresses, kBlocks, tickets, &error));
  // One at a time and none are as good as several.
  uint8_t one[kTicket];
  MUST(vmmshare_pool_tickets(all.pool, all.addresses, 1, one, &error));
  CHECK(memcmp(one, tickets, kTicket) == 0);
  MUST(vmmshare_pool_tickets(all.pool, NULL, 0, NULL, &error));
  MUST(vmmshare_imported_pool_import(all.imported, NULL, 0, SECOND, NULL,
                                     &error));
  for (int i = 0; i < kBlocks; ++i) {
    MUST(vmmshare_imported_pool_import(all.imported, tickets + i * kTicket, 1,
                                       10 * SECOND, &all.blocks[i], &error));
  }
  one[5] ^= 1;
  vmmshare_block* none = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "",
        vmmshare_imported_pool_import(all.imported, one, 1, SECOND, &none,
                                      &error));
  CHECK(none == NULL);
  return all;
}

// How often `part` is in the leases of `pool`.
static int Leases(const vmmshare_pool* pool, const char* part) {
  vmmshare_text* json = NULL;
  MUST(vmmshare_pool_leases(pool, &json, &error));
  int count = 0;
  for (const char* at = strstr(vmmshare_text_get(json), part); at != NULL;
       at = strstr(at + 1, part)) {
    ++count;
  }
  vmmshare_text_free(json);
  return count;
}

static size_t Recalled(const vmmshare_imported_pool* pool, uint64_t* addresses,
                       size_t room) {
  size_t count = 99;
  MUST(vmmshare_imported_pool_recalled(pool, addresses, room, &count, &error));
  return count;
}

void BlocksAreAskedBack(void) {
  Shared all = Open();
  uint64_t seen = 0;
  CHECK(Recalled(all.imported, NULL, 0) == 0);
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "has asked for no block",
        vmmshare_imported_pool_wait_recalled(all.imported, &seen, 0, &error));
  CHECK(Leases(all.pool, "\"held\"") == kBlocks);
  FAILS(
      VMMSHARE_DEADLINE_EXCEEDED, "",
      vmmshare_pool_wait_returned(all.pool, all.addresses, kBlocks, 0, &error));

  int capable = 7;
  vmmshare_text* text = NULL;
  MUST(vmmshare_pool_rdma(all.pool, &capable, &text, &error));
  CHECK(capable == 1 && vmmshare_text_get(text)[0] == '\0');
  vmmshare_text_free(text);

  // One of them, and then all.
  MUST(vmmshare_pool_recall(all.pool, &all.addresses[1], 1, 600 * SECOND,
                            &error));
  MUST(vmmshare_imported_pool_wait_recalled(all.imported, &seen, 10 * SECOND,
                                            &error));
  CHECK(seen == 1);
  uint64_t recalled[kBlocks] = {7, 7};
  CHECK(Recalled(all.imported, recalled, kBlocks) == 1);
  CHECK(recalled[0] == vmmshare_block_address(all.blocks[1]));
  CHECK(recalled[1] == 7);
  CHECK(Leases(all.pool, "\"recalled\"") == 1);
  MUST(vmmshare_pool_recall(all.pool, NULL, 0, 600 * SECOND, &error));
  MUST(vmmshare_imported_pool_wait_recalled(all.imported, &seen, 10 * SECOND,
                                            &error));
  CHECK(seen == 2 && Leases(all.pool, "\"recalled\"") == kBlocks);
  // Where there is room for fewer it says how many there are.
  recalled[0] = recalled[1] = 7;
  CHECK(Recalled(all.imported, recalled, 1) == kBlocks);
  CHECK(recalled[0] != 7 && recalled[1] == 7);
  size_t count = 99;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`addresses` is NULL",
        vmmshare_imported_pool_recalled(all.imported, NULL, 1, &count, &error));
  CHECK(count == 0);

  // One is freed while somebody has it, which it then is for nobody.
  MUST(vmmshare_pool_free(all.pool, all.addresses[0], kStream, &error));
  CHECK(Leases(all.pool, "\"freed\": true") == 1);
  vmmshare_block_close(all.blocks[0]);
  EnterContext();
  MUST(vmmshare_block_close_after(all.blocks[1], kStream, &error));
  MUST(vmmshare_pool_wait_returned(all.pool, &all.addresses[1], 1, 10 * SECOND,
                                   &error));
  MUST(vmmshare_pool_wait_returned(all.pool, NULL, 0, 10 * SECOND, &error));
  CHECK(Leases(all.pool, "\"block\"") == 0);
  CHECK(Recalled(all.imported, recalled, kBlocks) == 0);

  // Nobody asks any more.
  vmmshare_share_close(all.share);
  vmmshare_server_close(all.server);
  FAILS(VMMSHARE_UNAVAILABLE, "",
        vmmshare_imported_pool_wait_recalled(all.imported, &seen, 10 * SECOND,
                                             &error));
  vmmshare_imported_pool_close(all.imported);
  MUST(vmmshare_pool_free(all.pool, all.addresses[1], kStream, &error));
  MUST(vmmshare_pool_order(all.pool, NULL, kStream, 10 * SECOND, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_pool is NULL",
        vmmshare_pool_order(NULL, NULL, kStream, 10 * SECOND, &error));
  MUST(vmmshare_pool_release_stream(all.pool, kStream, 10 * SECOND, &error));
  MUST(vmmshare_pool_trim(all.pool, UINT64_MAX, NULL, &error));
  uint64_t freed = 7;
  MUST(vmmshare_pool_trim(all.pool, 0, &freed, &error));
  vmmshare_pool_statistics now = {sizeof(now)};
  MUST(vmmshare_pool_get_statistics(all.pool, &now, &error));
  CHECK(freed > 0 && freed % 4096 == 0 && now.live_blocks == 0);
  // After a failure it is as it was.
  const vmmshare_pool_statistics before = now;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_pool is NULL",
        vmmshare_pool_get_statistics(NULL, &now, &error));
  CHECK(memcmp(&now, &before, sizeof(now)) == 0);
  vmmshare_pool_close(all.pool);
  vmmshare_device_close(all.device);
  vmmshare_driver_close(all.driver);
}

static uint64_t Peers(const vmmshare_pool* pool) {
  vmmshare_pool_statistics now = {sizeof(now)};
  MUST(vmmshare_pool_get_statistics(pool, &now, &error));
  return now.peers;
}

// By a thread of a pool that ends.
static void WaitUntilThereIsNoPeer(const vmmshare_pool* pool) {
  const time_t begun = time(NULL);
  while (Peers(pool) != 0) CHECK(time(NULL) - begun < 50);
}

static void CloseOwner(Shared* all) {
  vmmshare_share_close(all->share);
  vmmshare_server_close(all->server);
  vmmshare_pool_close(all->pool);
  vmmshare_device_close(all->device);
  vmmshare_driver_close(all->driver);
}

// The last handle of a pool is closed before the GPU has done with its block, by
// who lets the GPU go on afterwards. Blocks are closed before the pool, or after it.
static void CloseBeforeTheGpuHasDone(int blocks_first) {
  Shared all = Open();
  vmmshare_fence_pool* fences = NULL;
  vmmshare_fence* fence = NULL;
  MUST(vmmshare_fence_pool_create(all.device, &fences, &error));
  MUST(vmmshare_fence_create(fences, &fence, &error));
  int (*create)(void**, unsigned);
  int (*synchronize)(void*);
  int (*destroy)(void*);
  Find("cuStreamCreate", &create);
  Find("cuStreamSynchronize", &synchronize);
  Find("cuStreamDestroy_v2", &destroy);
  void* stream = NULL;
  EnterContext();
  CHECK(create(&stream, 1) == 0);
  MUST(vmmshare_fence_wait(fence, stream, 1, &error));

  vmmshare_block_close(all.blocks[0]);
  if (!blocks_first) vmmshare_imported_pool_close(all.imported);
  MUST(vmmshare_block_close_after(all.blocks[1], stream, &error));
  if (blocks_first) vmmshare_imported_pool_close(all.imported);
  CHECK(Peers(all.pool) == 1 && Leases(all.pool, "\"block\"") == 1);
  MUST(vmmshare_fence_signal_host(fence, 1, &error));
  MUST(vmmshare_pool_wait_returned(all.pool, NULL, 0, 50 * SECOND, &error));
  WaitUntilThereIsNoPeer(all.pool);

  CHECK(synchronize(stream) == 0 && destroy(stream) == 0);
  vmmshare_fence_close(fence);
  vmmshare_fence_pool_close(fences);
  CloseOwner(&all);
}

void WhoClosesTheLastBlockWaitsForNobody(void) { CloseBeforeTheGpuHasDone(0); }

void WhoClosesAPoolWaitsForNoStream(void) { CloseBeforeTheGpuHasDone(1); }

// In the process that opened it; a forked child ends nothing.
void APoolEndsWithItsLastBlock(void) {
  Shared all = Open();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    vmmshare_imported_pool_close(all.imported);
    for (int i = 0; i < kBlocks; ++i) vmmshare_block_close(all.blocks[i]);
    _exit(0);
  }
  Join((int)child);
  vmmshare_imported_pool_close(all.imported);
  vmmshare_block_close(all.blocks[0]);
  CHECK(Peers(all.pool) == 1 && Leases(all.pool, "\"block\"") == 1);
  vmmshare_block_close(all.blocks[1]);
  WaitUntilThereIsNoPeer(all.pool);
  CloseOwner(&all);
}

// Its segments are as large as was said, and not larger.
void APoolIsAsLargeAsItMayBe(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_pool_options sizes = {sizeof(sizes)};
  sizes.first_segment_size = 2 << 20;
  sizes.max_segment_size = 2 << 20;
  sizes.cap = 4 << 20;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &sizes, &pool, &error));
  uint64_t blocks[2];
  for (int i = 0; i < 2; ++i) {
    MUST(
        vmmshare_pool_allocate(pool, 2 << 20, 0, (void*)1, &blocks[i], &error));
  }
  uint64_t more = 0;
  FAILS(VMMSHARE_RESOURCE_EXHAUSTED, "",
        vmmshare_pool_allocate(pool, 1, 0, (void*)1, &more, &error));
  for (int i = 0; i < 2; ++i) {
    MUST(vmmshare_pool_free(pool, blocks[i], (void*)1, &error));
  }
  vmmshare_pool_close(pool);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// A machine whose devices are no peers, and have no memory for network cards.
void WhatADeviceCannotIsTold(void) {
  CHECK(setenv("VMMSHARE_HOST_PEERS", "none", 1) == 0);
  CHECK(setenv("VMMSHARE_HOST_RDMA", "none", 1) == 0);
  vmmshare_driver* const driver = Driver();
  CHECK(vmmshare_driver_describe(driver)[0] != '\0');
  vmmshare_device* const device = Device(driver);
  vmmshare_device* second = NULL;
  MUST(vmmshare_device_open(driver, 1, &second, &error));
  int32_t can = 7;
  MUST(vmmshare_device_can_access(device, second, &can, &error));
  CHECK(can == 0);
  MUST(vmmshare_device_can_access(device, device, &can, &error));
  CHECK(can == 1);

  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  options.flags = VMMSHARE_RDMA_TRY;
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  int capable = 7;
  vmmshare_text* refusal = NULL;
  MUST(vmmshare_memory_rdma(memory, &capable, &refusal, &error));
  CHECK(capable == 0 && vmmshare_text_get(refusal)[0] != '\0');
  vmmshare_text_free(refusal);
  vmmshare_memory_close(memory);
  vmmshare_pool_options sizes = {sizeof(sizes)};
  sizes.flags = VMMSHARE_RDMA_TRY;
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, &sizes, &pool, &error));
  uint64_t block = 0;
  MUST(vmmshare_pool_allocate(pool, 1, 0, kStream, &block, &error));
  MUST(vmmshare_pool_rdma(pool, &capable, &refusal, &error));
  CHECK(capable == 0 && vmmshare_text_get(refusal)[0] != '\0');
  vmmshare_text_free(refusal);
  capable = 7;
  MUST(vmmshare_pool_rdma(pool, &capable, NULL, &error));
  CHECK(capable == 0);
  vmmshare_pool_close(pool);
  sizes.flags = VMMSHARE_RDMA_REQUIRE;
  MUST(vmmshare_pool_create(device, &sizes, &pool, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "RDMA",
        vmmshare_pool_allocate(pool, 1, 0, kStream, &block, &error));
  CHECK(block == 0);
  vmmshare_pool_close(pool);
  vmmshare_device_close(second);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}
