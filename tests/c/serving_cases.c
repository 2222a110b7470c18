// What a server is told when it is started, and whose the fences are.
#define _POSIX_C_SOURCE 200809L

#include <time.h>
#include <unistd.h>

#include "tests/c/c_test.h"

void AServerHasItsLimits(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  char directory[] = "/tmp/vmmshare-c-XXXXXX";
  CHECK(mkdtemp(directory) != NULL);
  vmmshare_server_options options = {sizeof(options)};
  options.directory = directory;
  options.name = "own";
  options.max_sessions = 8;
  options.max_leases = 2;
  options.request_timeout_ns = 20 * SECOND;
  options.transfer_timeout_ns = 20 * SECOND;
  vmmshare_server* server = NULL;
  MUST(vmmshare_server_start(&options, &server, &error));
  char socket[64];
  snprintf(socket, sizeof(socket), "%s/own", directory);
  CHECK(access(socket, F_OK) == 0);
  CHECK(strcmp(vmmshare_server_address(server), socket) == 0);
  vmmshare_server* second = NULL;
  FAILS(VMMSHARE_ALREADY_EXISTS, "own",
        vmmshare_server_start(&options, &second, &error));
  CHECK(second == NULL);

  // A process has at most half of what is out at once.
  vmmshare_memory* const memory = HostMemory(device, 4096);
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_share_memory(server, memory, &share, &error));
  const char* const text = vmmshare_share_text(share);
  vmmshare_memory* opened = NULL;
  vmmshare_memory* more = NULL;
  MUST(vmmshare_memory_open(driver, text, NULL, 10 * SECOND, &opened, &error));
  // It waits for one to be returned as long as it may, and tells why; on a machine
  // so busy that it was not heard of in time, only after a longer time.
  vmmshare_status refused = VMMSHARE_DEADLINE_EXCEEDED;
  for (int64_t patience = SECOND / 50;
       refused == VMMSHARE_DEADLINE_EXCEEDED && patience < 40 * SECOND;
       patience *= 2) {
    refused = vmmshare_memory_open(driver, text, NULL, patience, &more, NULL);
  }
  CHECK(refused == VMMSHARE_RESOURCE_EXHAUSTED && more == NULL);
  // Who holds it hears that it is asked back, also without an end.
  MUST(vmmshare_server_recall(server, memory, VMMSHARE_FOREVER, &error));
  int64_t return_in_ns = VMMSHARE_FOREVER;
  const time_t begun = time(NULL);
  while (return_in_ns == VMMSHARE_FOREVER) {
    CHECK(time(NULL) - begun < 60);
    MUST(vmmshare_memory_lease(opened, &return_in_ns, &error));
  }
  CHECK(return_in_ns > 600 * SECOND);
  MUST(vmmshare_server_recall(server, memory, 600 * SECOND, &error));
  while (return_in_ns > 600 * SECOND) {
    MUST(vmmshare_memory_lease(opened, &return_in_ns, &error));
  }
  CHECK(return_in_ns > 0);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "imported memory",
        vmmshare_server_recall(server, opened, SECOND, &error));
  vmmshare_memory_close(opened);
  MUST(vmmshare_server_wait_returned(server, 10 * SECOND, &error));
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
  CHECK(rmdir(directory) == 0);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// What came from one server, in each way that there is.
typedef struct {
  vmmshare_memory* memory;
  vmmshare_fetched* fetched;
  vmmshare_restorable* restorable;
} Held;

enum { kWays = 3 };

static vmmshare_status LeaseOf(const Held* held, int way, int64_t* return_in_ns,
                               vmmshare_error** error) {
  if (way == 0) return vmmshare_memory_lease(held->memory, return_in_ns, error);
  if (way == 1) {
    return vmmshare_fetched_lease(held->fetched, return_in_ns, error);
  }
  return vmmshare_restorable_lease(held->restorable, return_in_ns, error);
}

// Also what it asked back.
void AnOwnerThatHasEndedWantsNothingBack(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_memory* const memory = HostMemory(device, 4096);
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  vmmshare_restorable* own = NULL;
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_memory(server, memory, &share, &error));
  MUST(vmmshare_restorable_create(server, device, &options, &own, &error));
  const char* const text = vmmshare_share_text(share);
  Held held = {NULL};
  MUST(vmmshare_memory_open(driver, text, NULL, 10 * SECOND, &held.memory,
                            &error));
  MUST(vmmshare_fetch(driver, text, 10 * SECOND, &held.fetched, &error));
  MUST(vmmshare_restorable_open(driver, vmmshare_restorable_text(own), NULL,
                                10 * SECOND, &held.restorable, &error));
  MUST(vmmshare_server_recall_all(server, 600 * SECOND, &error));
  const time_t begun = time(NULL);
  for (int way = 0; way < kWays; ++way) {
    int64_t return_in_ns = VMMSHARE_FOREVER;
    while (return_in_ns == VMMSHARE_FOREVER) {
      CHECK(time(NULL) - begun < 50);
      MUST(LeaseOf(&held, way, &return_in_ns, &error));
    }
  }
  vmmshare_restorable_close(own);
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  for (int way = 0; way < kWays; ++way) {
    int64_t return_in_ns = 7;
    vmmshare_status status = VMMSHARE_OK;
    while (status == VMMSHARE_OK) {
      CHECK(time(NULL) - begun < 50);
      status = LeaseOf(&held, way, &return_in_ns, NULL);
    }
    CHECK(status == VMMSHARE_UNAVAILABLE);
    CHECK(return_in_ns == VMMSHARE_FOREVER);
  }
  vmmshare_restorable_close(held.restorable);
  vmmshare_fetched_close(held.fetched);
  vmmshare_memory_close(held.memory);
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// The owner makes them, and others open their tickets: never the other way.
void FencesAreMadeByTheirOwner(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_fence_pool* own = NULL;
  vmmshare_fence* fence = NULL;
  MUST(vmmshare_fence_pool_create(device, &own, &error));
  MUST(vmmshare_fence_create(own, &fence, &error));
  uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES];
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`ticket` is NULL",
        vmmshare_fence_ticket(fence, NULL, &error));
  MUST(vmmshare_fence_ticket(fence, ticket, &error));
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_fences(server, own, &share, &error));
  vmmshare_fence_pool* theirs = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`text` is NULL",
        vmmshare_fence_pool_open(device, NULL, SECOND, &theirs, &error));
  MUST(vmmshare_fence_pool_open(device, vmmshare_share_text(share), 10 * SECOND,
                                &theirs, &error));
  // Its own is never lost; that of others may be.
  MUST(vmmshare_fence_pool_connection(own, &error));
  MUST(vmmshare_fence_pool_connection(theirs, &error));

  vmmshare_fence* opened = NULL;
  vmmshare_fence* none = NULL;
  FAILS(VMMSHARE_FAILED_PRECONDITION,
        "another process serves and this one opened",
        vmmshare_fence_open(own, ticket, SECOND, &none, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "that this process created",
        vmmshare_fence_create(theirs, &none, &error));
  vmmshare_share* again = NULL;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "another process's",
        vmmshare_server_share_fences(server, theirs, &again, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`ticket` is NULL",
        vmmshare_fence_open(theirs, NULL, SECOND, &none, &error));
  CHECK(none == NULL && again == NULL);
  MUST(vmmshare_fence_open(theirs, ticket, 10 * SECOND, &opened, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "that this process created",
        vmmshare_fence_ticket(opened, ticket, &error));
  MUST(vmmshare_fence_signal_host(fence, 3, &error));
  MUST(vmmshare_fence_wait_host(opened, 3, 10 * SECOND, &error));
  // One that is given up wakes who waits.
  MUST(vmmshare_fence_abandon(fence, &error));
  FAILS(VMMSHARE_ABORTED, "",
        vmmshare_fence_wait_host(opened, 4, 10 * SECOND, &error));

  vmmshare_fence* const signals[] = {fence, NULL};
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_fence is NULL",
        vmmshare_fence_meet(signals, 2, NULL, 0, (void*)1, 1, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`waits` is NULL",
        vmmshare_fence_meet(signals, 1, NULL, 1, (void*)1, 1, &error));
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_fence_close(opened);
  vmmshare_fence_pool_close(theirs);
  vmmshare_fence_close(fence);
  vmmshare_fence_pool_close(own);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// Opens the memory whose text comes through `text`, leaves a process behind that
// has all that this one had until `hold` ends, and ends.
static void OpenForkAndEnd(int text, int hold) {
  char share[512];
  const ssize_t size = read(text, share, sizeof(share) - 1);
  CHECK(size > 0);
  share[size] = '\0';
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_open(Driver(), share, NULL, 10 * SECOND, &memory,
                            &error));
  const pid_t left = fork();
  CHECK(left >= 0);
  char none;
  if (left == 0 && read(hold, &none, 1) != 0) _exit(1);
  _exit(0);
}

void WhatAForkedProcessMayUseIsQuarantined(void) {
  int text[2];
  int hold[2];
  CHECK(pipe(text) == 0 && pipe(hold) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(hold[1]);
    OpenForkAndEnd(text[0], hold[0]);
  }
  close(hold[0]);
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_memory* const memory = HostMemory(device, 4096);
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_memory(server, memory, &share, &error));
  const char* const words = vmmshare_share_text(share);
  CHECK(write(text[1], words, strlen(words)) == (ssize_t)strlen(words));
  Join((int)child);
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "a process that it forked",
        vmmshare_server_wait_returned(server, SECOND / 20, &error));
  vmmshare_text* json = NULL;
  MUST(vmmshare_server_leases(server, &json, &error));
  CHECK(strstr(vmmshare_text_get(json), "\"quarantined\"") != NULL);
  vmmshare_text_free(json);
  close(hold[1]);
  close(text[0]);
  close(text[1]);
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}
