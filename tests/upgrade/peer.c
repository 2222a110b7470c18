// One of two processes that share, for upgrade_test.py. The same program runs
// with the library of one release or of another, as programs do that are not
// compiled again: so it uses what the older one has.
//
// usage: peer HOSTDRIVER CASE owner [SOCKET|ADDRESS]
//        peer HOSTDRIVER CASE importer [SOCKET|ADDRESS] [TEXT [TICKET]]
//   SOCKET   a descriptor, for the cases channel and ring
//   ADDRESS  a keeper's, for the case keeper
//
// An owner prints a line, what its importer is to be given, and ends when it is
// sent one. Exit status: 0; 3 when a call was refused, of which standard output
// has status and message; 1 when something is not as the other one left it.
// $VMMSHARE_UPGRADE_SPOILT makes an owner leave a byte that is wrong.
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/c/vmmshare.h"

#define SECOND INT64_C(1000000000)

enum { kBytes = 4096, kItems = 5, kBuffers = 2, kRefused = 3 };

static const char* driver_path;
static void* const kStream = (void*)1;  // CU_STREAM_LEGACY.

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

// `call` has `error` as its last argument.
#define MUST(call)                                  \
  do {                                              \
    vmmshare_error* error = NULL;                   \
    const vmmshare_status got = (call);             \
    if (got != VMMSHARE_OK) {                       \
      printf("%s: %s\n", vmmshare_status_name(got), \
             vmmshare_error_message(error));        \
      exit(kRefused);                               \
    }                                               \
  } while (0)

static unsigned char Pattern(int i) { return (unsigned char)(i * 7 + 1); }

static void Fill(uint64_t address) {
  unsigned char* const bytes = (unsigned char*)(uintptr_t)address;
  for (int i = 0; i < kBytes; ++i) bytes[i] = Pattern(i);
  if (getenv("VMMSHARE_UPGRADE_SPOILT") != NULL) bytes[kBytes - 1] ^= 1;
}

static void Expect(uint64_t address) {
  const unsigned char* const bytes = (const unsigned char*)(uintptr_t)address;
  for (int i = 0; i < kBytes; ++i) CHECK(bytes[i] == Pattern(i));
}

static void Hex(const uint8_t* bytes, size_t count, char* out) {
  for (size_t i = 0; i < count; ++i) sprintf(out + 2 * i, "%02x", bytes[i]);
}

static void Unhex(const char* text, uint8_t* bytes, size_t count) {
  CHECK(strlen(text) == 2 * count);
  for (size_t i = 0; i < count; ++i) {
    unsigned byte = 0;
    CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
    bytes[i] = (uint8_t)byte;
  }
}

// Gives the importer `text` and `ticket`, and returns when it has ended.
static void Hand(const char* text, const char* ticket) {
  printf("%s %s\n", text, ticket);
  fflush(stdout);
  CHECK(getchar() == '\n');
}

static vmmshare_driver* driver;
static vmmshare_device* device;

static void Start(void) {
  MUST(vmmshare_driver_load(driver_path, &driver, &error));
  MUST(vmmshare_device_open(driver, 0, &device, &error));
}

static vmmshare_memory* HostMemory(void) {
  vmmshare_memory_options options = {sizeof(options)};
  vmmshare_memory* memory = NULL;
  options.size = kBytes;
  options.flags = VMMSHARE_ON_HOST;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  return memory;
}

static vmmshare_import_options HostAccess(void) {
  vmmshare_import_options options = {sizeof(options)};
  options.flags = VMMSHARE_IMPORT_HOST_ACCESS;
  return options;
}

static vmmshare_server* Server(void) {
  vmmshare_server* server = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  return server;
}

static void OwnMemory(void) {
  vmmshare_memory* const memory = HostMemory();
  vmmshare_server* const server = Server();
  vmmshare_share* share = NULL;
  Fill(vmmshare_memory_address(memory));
  MUST(vmmshare_server_share_memory(server, memory, &share, &error));
  Hand(vmmshare_share_text(share), "");
  MUST(vmmshare_server_wait_returned(server, 10 * SECOND, &error));
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
}

static void OpenMemory(const char* text) {
  const vmmshare_import_options options = HostAccess();
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_open(driver, text, &options, 10 * SECOND, &memory,
                            &error));
  CHECK(vmmshare_memory_requested_size(memory) == kBytes);
  Expect(vmmshare_memory_address(memory));
  vmmshare_memory_close(memory);
}

static void OwnBlock(void) {
  vmmshare_pool_options options = {sizeof(options)};
  vmmshare_pool* pool = NULL;
  options.flags = VMMSHARE_ON_HOST;
  MUST(vmmshare_pool_create(device, &options, &pool, &error));
  vmmshare_server* const server = Server();
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_share_pool(server, pool, &share, &error));
  uint64_t address = 0;
  uint8_t ticket[VMMSHARE_BLOCK_TICKET_BYTES];
  char text[2 * sizeof(ticket) + 1];
  MUST(vmmshare_pool_allocate(pool, kBytes, 0, kStream, &address, &error));
  Fill(address);
  MUST(vmmshare_pool_tickets(pool, &address, 1, ticket, &error));
  Hex(ticket, sizeof(ticket), text);
  Hand(vmmshare_share_text(share), text);
  MUST(vmmshare_pool_free(pool, address, kStream, &error));
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_pool_close(pool);
}

static void OpenBlock(const char* text, const char* ticket_text) {
  const vmmshare_import_options options = HostAccess();
  vmmshare_imported_pool* pool = NULL;
  vmmshare_block* block = NULL;
  uint8_t ticket[VMMSHARE_BLOCK_TICKET_BYTES];
  Unhex(ticket_text, ticket, sizeof(ticket));
  MUST(vmmshare_imported_pool_open(driver, text, &options, 10 * SECOND, &pool,
                                   &error));
  MUST(vmmshare_imported_pool_import(pool, ticket, 1, 10 * SECOND, &block,
                                     &error));
  CHECK(vmmshare_block_size(block) >= kBytes);
  Expect(vmmshare_block_address(block));
  vmmshare_block_close(block);
  vmmshare_imported_pool_close(pool);
}

// Each waits for what the other one signals.
static void OwnFence(void) {
  vmmshare_fence_pool* pool = NULL;
  vmmshare_fence* fence = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_fence_pool_create(device, &pool, &error));
  vmmshare_server* const server = Server();
  MUST(vmmshare_server_share_fences(server, pool, &share, &error));
  MUST(vmmshare_fence_create(pool, &fence, &error));
  uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES];
  char text[2 * sizeof(ticket) + 1];
  MUST(vmmshare_fence_ticket(fence, ticket, &error));
  Hex(ticket, sizeof(ticket), text);
  const int spoilt = getenv("VMMSHARE_UPGRADE_SPOILT") != NULL;
  MUST(vmmshare_fence_signal_host(fence, spoilt ? 6 : 7, &error));
  Hand(vmmshare_share_text(share), text);
  MUST(vmmshare_fence_wait_host(fence, 8, 10 * SECOND, &error));
  vmmshare_fence_close(fence);
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_fence_pool_close(pool);
}

static void OpenFence(const char* text, const char* ticket_text) {
  vmmshare_fence_pool* pool = NULL;
  vmmshare_fence* fence = NULL;
  uint8_t ticket[VMMSHARE_FENCE_TICKET_BYTES];
  uint64_t value = 0;
  Unhex(ticket_text, ticket, sizeof(ticket));
  MUST(vmmshare_fence_pool_open(device, text, 10 * SECOND, &pool, &error));
  MUST(vmmshare_fence_open(pool, ticket, 10 * SECOND, &fence, &error));
  MUST(vmmshare_fence_value(fence, &value, &error));
  CHECK(value == 7);
  MUST(vmmshare_fence_signal_host(fence, 8, &error));
  vmmshare_fence_close(fence);
  vmmshare_fence_pool_close(pool);
}

static vmmshare_channel* Channel(const char* descriptor) {
  vmmshare_channel* channel = NULL;
  MUST(vmmshare_channel_adopt(atoi(descriptor), &channel, &error));
  return channel;
}

static void SendMemory(const char* descriptor) {
  vmmshare_channel* const channel = Channel(descriptor);
  vmmshare_memory* const memory = HostMemory();
  const vmmshare_memory* const all = memory;
  Fill(vmmshare_memory_address(memory));
  MUST(vmmshare_channel_send_memory(channel, &all, 1, 10 * SECOND, &error));
  vmmshare_channel_close(channel);
  vmmshare_memory_close(memory);
}

static void ReceiveMemory(const char* descriptor) {
  const vmmshare_import_options options = HostAccess();
  vmmshare_channel* const channel = Channel(descriptor);
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_channel_receive_memory(channel, driver, &options, 1,
                                       10 * SECOND, &memory, &error));
  Expect(vmmshare_memory_address(memory));
  vmmshare_channel_close(channel);
  vmmshare_memory_close(memory);
}

// A call of the driver's, of which this program has no header.
static void Find(const char* name, void* function) {
  void* const library = dlopen(driver_path, RTLD_NOW);
  void* const found = library == NULL ? NULL : dlsym(library, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof(found));
}

static void EnterContext(void) {
  int (*retain)(void**, int);
  int (*make_current)(void*);
  void* context = NULL;
  Find("cuDevicePrimaryCtxRetain", &retain);
  Find("cuCtxSetCurrent", &make_current);
  CHECK(retain(&context, 0) == 0 && make_current(context) == 0);
}

static void WriteRing(const char* descriptor) {
  vmmshare_channel* const channel = Channel(descriptor);
  vmmshare_pool_options options = {sizeof(options)};
  vmmshare_ring_home* home = NULL;
  vmmshare_ring* ring = NULL;
  int (*synchronize)(void*);
  Find("cuStreamSynchronize", &synchronize);
  EnterContext();
  options.flags = VMMSHARE_ON_HOST;
  MUST(vmmshare_ring_home_create(device, &options, &home, &error));
  MUST(vmmshare_ring_open_writer(home, channel, kBuffers, kBytes, 10 * SECOND,
                                 &ring, &error));
  for (int i = 1; i <= kItems; ++i) {
    vmmshare_ring_buffer buffer = {sizeof(buffer)};
    MUST(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
    // The reader has given it back by then, for this thread too.
    CHECK(synchronize(kStream) == 0);
    Fill(buffer.address);
    buffer.tag = (uint64_t)(1000 + i);
    MUST(vmmshare_ring_pass(ring, &buffer, kStream, 10 * SECOND, &error));
  }
  MUST(vmmshare_ring_finish(ring, 10 * SECOND, &error));
  vmmshare_ring_close(ring);
  vmmshare_channel_close(channel);
  vmmshare_ring_home_close(home);
}

static void ReadRing(const char* descriptor) {
  vmmshare_channel* const channel = Channel(descriptor);
  vmmshare_ring* ring = NULL;
  EnterContext();
  MUST(vmmshare_ring_open_reader(device, channel, 0, 10 * SECOND, &ring,
                                 &error));
  for (int i = 1; i <= kItems; ++i) {
    vmmshare_ring_buffer buffer = {sizeof(buffer)};
    MUST(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
    CHECK(buffer.size == kBytes && buffer.tag == (uint64_t)(1000 + i));
    MUST(vmmshare_ring_await(ring, &buffer, 10 * SECOND, &error));
    Expect(buffer.address);
    MUST(vmmshare_ring_pass(ring, &buffer, kStream, 0, &error));
  }
  // Who left before the writer has finished would be missed.
  vmmshare_ring_buffer none = {sizeof(none)};
  CHECK(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &none, NULL) ==
        VMMSHARE_OUT_OF_RANGE);
  MUST(vmmshare_ring_finish(ring, 10 * SECOND, &error));
  vmmshare_ring_close(ring);
  vmmshare_channel_close(channel);
}

static vmmshare_keeper* Keeper(const char* address) {
  vmmshare_keeper* keeper = NULL;
  MUST(vmmshare_keeper_connect(address, 10 * SECOND, &keeper, &error));
  return keeper;
}

static void Keep(const char* address) {
  vmmshare_keeper* const keeper = Keeper(address);
  vmmshare_memory* const memory = HostMemory();
  Fill(vmmshare_memory_address(memory));
  MUST(vmmshare_keeper_put(keeper, "upgrade", memory, 10 * SECOND, &error));
  MUST(vmmshare_keeper_seal(keeper, "upgrade", 10 * SECOND, &error));
  vmmshare_memory_close(memory);
  vmmshare_keeper_close(keeper);
}

static void Attach(const char* address) {
  const vmmshare_import_options options = HostAccess();
  vmmshare_keeper* const keeper = Keeper(address);
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_keeper_attach(keeper, "upgrade", driver, &options, 10 * SECOND,
                              &memory, &error));
  Expect(vmmshare_memory_address(memory));
  vmmshare_memory_close(memory);
  MUST(vmmshare_keeper_drop(keeper, "upgrade", 10 * SECOND, &error));
  vmmshare_keeper_close(keeper);
}

int main(int argc, char** argv) {
  CHECK(argc >= 4);
  driver_path = argv[1];
  const char* const name = argv[2];
  const int owns = strcmp(argv[3], "owner") == 0;
  const char* const where = argc > 4 ? argv[4] : "";
  const char* const ticket = argc > 5 ? argv[5] : "";
  Start();
  if (strcmp(name, "memory") == 0) {
    owns ? OwnMemory() : OpenMemory(where);
  } else if (strcmp(name, "block") == 0) {
    owns ? OwnBlock() : OpenBlock(where, ticket);
  } else if (strcmp(name, "fence") == 0) {
    owns ? OwnFence() : OpenFence(where, ticket);
  } else if (strcmp(name, "channel") == 0) {
    owns ? SendMemory(where) : ReceiveMemory(where);
  } else if (strcmp(name, "ring") == 0) {
    owns ? WriteRing(where) : ReadRing(where);
  } else {
    CHECK(strcmp(name, "keeper") == 0);
    owns ? Keep(where) : Attach(where);
  }
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
  return 0;
}
