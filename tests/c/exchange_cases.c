// Symmetric memory over a program's own exchange, which fails or lies.
#include <stddef.h>

#include "tests/c/c_test.h"

// A store of a job of one rank, and what its functions do wrong.
typedef struct {
  char keys[8][64];
  uint8_t values[8][4096];
  uint64_t sizes[8];
  int count;
  vmmshare_status put, fence, get;  // What is returned in place of OK.
  uint64_t said_size;               // What get says, unless 0.
  int grows;                        // Get says one more than it has room for.
  uint64_t first_room, last_room;   // What get was given.
  int64_t timeout_ns;               // The same of any call.
  int scoped;                       // Whether all keys had the scope.
} Store;

static vmmshare_status Put(void* user, const char* key, const uint8_t* value,
                           uint64_t size, int64_t timeout_ns) {
  Store* const store = user;
  store->timeout_ns = timeout_ns;
  store->scoped &= strstr(key, "scope-7") != NULL;
  if (store->put != VMMSHARE_OK) return store->put;
  CHECK(store->count < 8 && size <= 4096 && strlen(key) < 64);
  strcpy(store->keys[store->count], key);
  memcpy(store->values[store->count], value, (size_t)size);
  store->sizes[store->count++] = size;
  return VMMSHARE_OK;
}

static vmmshare_status Fence(void* user, int64_t timeout_ns) {
  Store* const store = user;
  store->timeout_ns = timeout_ns;
  return store->fence;
}

static vmmshare_status Get(void* user, int32_t rank, const char* key,
                           uint8_t* value, uint64_t room, uint64_t* size,
                           int64_t timeout_ns) {
  Store* const store = user;
  store->timeout_ns = timeout_ns;
  if (store->first_room == 0) store->first_room = room;
  store->last_room = room;
  if (store->get != VMMSHARE_OK) return store->get;
  if (store->grows) {
    *size = room + 1;
    return VMMSHARE_OK;
  }
  if (store->said_size != 0) {
    *size = store->said_size;
    memset(value, 0x5a, (size_t)(*size < room ? *size : room));
    return VMMSHARE_OK;
  }
  for (int i = store->count - 1; rank == 0 && i >= 0; --i) {
    if (strcmp(store->keys[i], key) != 0) continue;
    *size = store->sizes[i];
    memcpy(value, store->values[i], (size_t)(*size < room ? *size : room));
    return VMMSHARE_OK;
  }
  return VMMSHARE_NOT_FOUND;
}

static Store store;

static vmmshare_exchange Exchange(void) {
  memset(&store, 0, sizeof(store));
  store.scoped = 1;
  vmmshare_exchange exchange = {sizeof(exchange)};
  exchange.job = "job-9";
  exchange.scope = "scope-7";
  exchange.size = 1;
  exchange.user = &store;
  exchange.put = Put;
  exchange.fence = Fence;
  exchange.get = Get;
  return exchange;
}

static vmmshare_symmetric* Symmetric(const vmmshare_device* device) {
  const vmmshare_exchange exchange = Exchange();
  vmmshare_symmetric_options options = {sizeof(options)};
  options.size = 1 << 20;
  options.kinds = VMMSHARE_KIND_POSIX_FD;
  vmmshare_symmetric* symmetric = NULL;
  MUST(vmmshare_symmetric_create(device, &exchange, &options, VMMSHARE_FOREVER,
                                 &symmetric, &error));
  CHECK(store.scoped && store.count > 0);
  return symmetric;
}

// Whatever it returns is the error of the call, by its name and with a remedy.
void AnExchangeThatFailsIsNamed(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_symmetric* const symmetric = Symmetric(device);
  for (vmmshare_status status = VMMSHARE_CANCELLED;
       status <= VMMSHARE_DATA_LOSS; ++status) {
    vmmshare_exchange exchange = Exchange();
    store.fence = status;
    FAILS(
        status, vmmshare_status_name(status),
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
    exchange = Exchange();
    store.put = status;
    FAILS(
        status, "put(",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  }
  vmmshare_exchange exchange = Exchange();
  store.fence = VMMSHARE_UNAVAILABLE;
  vmmshare_error* why = NULL;
  CHECK(vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &why) ==
        VMMSHARE_UNAVAILABLE);
  CHECK(strstr(vmmshare_error_message(why),
               "the program's own exchange: fence() returned UNAVAILABLE") !=
        NULL);
  CHECK(vmmshare_error_cuda_result(why) == -1);
  vmmshare_error_free(why);
  vmmshare_symmetric_close(symmetric);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// The others wait for it, and are to read why.
void ARankWithoutADeviceTakesPart(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_symmetric_options options = {sizeof(options)};
  options.size = 1 << 20;
  vmmshare_symmetric* none = NULL;
  vmmshare_exchange exchange = Exchange();
  FAILS(VMMSHARE_INVALID_ARGUMENT, "a vmmshare_device is NULL",
        vmmshare_symmetric_create(NULL, &exchange, &options, SECOND, &none,
                                  &error));
  CHECK(none == NULL && store.count > 0);
  exchange = Exchange();
  FAILS(VMMSHARE_INVALID_ARGUMENT, "is no vmmshare_device",
        vmmshare_symmetric_create((const vmmshare_device*)driver, &exchange,
                                  &options, SECOND, &none, &error));
  CHECK(none == NULL && store.count > 0);
  exchange = Exchange();
  options.no_device = "somebody else has it";
  FAILS(VMMSHARE_NOT_FOUND, "somebody else has it [no-device]",
        vmmshare_symmetric_create(NULL, &exchange, &options, SECOND, &none,
                                  &error));
  CHECK(none == NULL && store.count > 0);
  // Who was compiled before there was `no_device` says nothing by it.
  exchange = Exchange();
  options.struct_size = offsetof(vmmshare_symmetric_options, no_device);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "a vmmshare_device is NULL",
        vmmshare_symmetric_create(NULL, &exchange, &options, SECOND, &none,
                                  &error));
  exchange = Exchange();
  MUST(vmmshare_symmetric_create(device, &exchange, &options, VMMSHARE_FOREVER,
                                 &none, &error));
  vmmshare_symmetric_close(none);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

void WhatAnExchangeSaysIsChecked(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_symmetric* const symmetric = Symmetric(device);
  // Each call knows how long it may take.
  CHECK(store.timeout_ns == VMMSHARE_FOREVER);
  CHECK(vmmshare_symmetric_address(symmetric, 0) != 0);
  CHECK(vmmshare_symmetric_address(symmetric, 1) == 0);
  CHECK(vmmshare_symmetric_address(symmetric, -1) == 0);
  CHECK(vmmshare_symmetric_size(symmetric) >= 1 << 20);

  vmmshare_exchange exchange = Exchange();
  MUST(vmmshare_symmetric_check_agreed(symmetric, &exchange, 60 * SECOND,
                                       &error));
  CHECK(store.timeout_ns > 0 && store.timeout_ns <= 60 * SECOND);
  // A rank that there cannot be.
  const int32_t places[][2] = {{0, 0}, {-1, 1}, {1, 1}, {0, -1}};
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); ++i) {
    exchange.rank = places[i][0];
    exchange.size = places[i][1];
    FAILS(
        VMMSHARE_INVALID_ARGUMENT, "makes no sense",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  }
  exchange = Exchange();
  exchange.struct_size -= 8;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "struct_size",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`exchange` is NULL",
        vmmshare_symmetric_check_agreed(symmetric, NULL, SECOND, &error));

  exchange = Exchange();
  exchange.put = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "Give all three",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  exchange = Exchange();
  exchange.get = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "Give all three",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));

  // More than any rank puts is not made room for.
  exchange = Exchange();
  store.said_size = ((uint64_t)1 << 24) + 1;
  FAILS(VMMSHARE_DATA_LOSS, "at most 16777216",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  // What is more than the room is asked for again, and then is no record.
  exchange = Exchange();
  store.said_size = 5000;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "not a usable record",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));
  CHECK(store.first_room < 5000 && store.last_room == 5000);
  // But not for ever.
  exchange = Exchange();
  store.grows = 1;
  FAILS(VMMSHARE_DEADLINE_EXCEEDED, "",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND / 20,
                                        &error));
  CHECK(store.last_room < (uint64_t)1 << 24);
  exchange = Exchange();
  store.get = VMMSHARE_PERMISSION_DENIED;
  FAILS(VMMSHARE_PERMISSION_DENIED, "get(",
        vmmshare_symmetric_check_agreed(symmetric, &exchange, SECOND, &error));

  // Nothing is left of memory that was not agreed upon.
  vmmshare_symmetric_options options = {sizeof(options)};
  vmmshare_symmetric* none = NULL;
  exchange = Exchange();
  options.size = 1 << 20;
  store.fence = VMMSHARE_ABORTED;
  FAILS(VMMSHARE_ABORTED, "fence()",
        vmmshare_symmetric_create(device, &exchange, &options, SECOND, &none,
                                  &error));
  // Nor asked for what its offsets do not reach.
  const uint64_t most = (uint64_t)256 * 0xFFFFFFFF;
  const uint64_t sizes[] = {most + 1, (uint64_t)1 << 40, UINT64_MAX};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    exchange = Exchange();
    options.size = sizes[i];
    FAILS(VMMSHARE_INVALID_ARGUMENT, "expected at most 1099511627520",
          vmmshare_symmetric_create(device, &exchange, &options, SECOND, &none,
                                    &error));
    CHECK(none == NULL && store.count == 0);
  }
  options.size = 1 << 20;
  exchange = Exchange();
  options.kinds = 1024;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`kinds` is 1024",
        vmmshare_symmetric_create(device, &exchange, &options, SECOND, &none,
                                  &error));
  CHECK(none == NULL && store.count == 0);
  vmmshare_symmetric_close(symmetric);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}
