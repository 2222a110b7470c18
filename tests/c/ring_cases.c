// Rings between a writer and a reader in two processes.
#define _POSIX_C_SOURCE 200809L

#include <sys/socket.h>
#include <unistd.h>

#include "tests/c/c_test.h"

enum { kItems = 5, kBuffers = 2, kBytes = 4096 };

static void* const kStream = (void*)1;  // CU_STREAM_LEGACY.

// One end of a socket pair, in this process or in the child that it forks,
// which is `*child` == 0.
static vmmshare_channel* Fork(int* child) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  *child = (int)fork();
  CHECK(*child >= 0);
  vmmshare_channel* channel = NULL;
  MUST(vmmshare_channel_adopt(ends[*child == 0], &channel, &error));
  close(ends[*child != 0]);
  return channel;
}

static vmmshare_ring* OpenWriter(const vmmshare_device* device,
                                 vmmshare_channel* channel) {
  vmmshare_pool_options options = {sizeof(options)};
  options.flags = VMMSHARE_ON_HOST;
  vmmshare_ring_home* home = NULL;
  MUST(vmmshare_ring_home_create(device, &options, &home, &error));
  vmmshare_ring* ring = NULL;
  MUST(vmmshare_ring_open_writer(home, channel, kBuffers, kBytes, 10 * SECOND,
                                 &ring, &error));
  // The ring keeps it; and of the channel nothing is left.
  vmmshare_ring_home_close(home);
  vmmshare_channel_close(channel);
  return ring;
}

static vmmshare_ring* OpenReader(const vmmshare_device* device,
                                 vmmshare_channel* channel, int32_t writable) {
  vmmshare_ring* ring = NULL;
  MUST(vmmshare_ring_open_reader(device, channel, writable, 10 * SECOND, &ring,
                                 &error));
  vmmshare_channel_close(channel);
  return ring;
}

static void Write(vmmshare_ring* ring) {
  int (*synchronize)(void*);
  Find("cuStreamSynchronize", &synchronize);
  vmmshare_ring_buffer buffer = {sizeof(buffer)};
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`buffer` is NULL",
        vmmshare_ring_acquire(ring, kStream, SECOND, NULL, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`buffer` is NULL",
        vmmshare_ring_pass(ring, NULL, kStream, SECOND, &error));
  buffer.struct_size = sizeof(buffer) - 8;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "struct_size",
        vmmshare_ring_acquire(ring, kStream, SECOND, &buffer, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "struct_size",
        vmmshare_ring_pass(ring, &buffer, kStream, SECOND, &error));
  buffer.struct_size = sizeof(buffer);
  FAILS(VMMSHARE_INVALID_ARGUMENT, "CU_STREAM_PER_THREAD",
        vmmshare_ring_acquire(ring, (void*)2, SECOND, &buffer, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "",
        vmmshare_ring_pass(ring, &buffer, kStream, SECOND, &error));
  for (int i = 1; i <= kItems; ++i) {
    MUST(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
    CHECK(buffer.struct_size == sizeof(buffer));
    CHECK(buffer.number == (uint64_t)i && buffer.size == kBytes);
    FAILS(VMMSHARE_FAILED_PRECONDITION, "the writer's end",
          vmmshare_ring_await(ring, &buffer, SECOND, &error));
    // The reader has given it back by then, for this thread too.
    CHECK(synchronize(kStream) == 0);
    memset(Bytes(buffer.address), i, kBytes);
    buffer.size = (uint64_t)(100 * i);
    buffer.tag = (uint64_t)(1000 + i);
    MUST(vmmshare_ring_pass(ring, &buffer, kStream, 10 * SECOND, &error));
    FAILS(VMMSHARE_FAILED_PRECONDITION, "",
          vmmshare_ring_pass(ring, &buffer, kStream, SECOND, &error));
  }
  MUST(vmmshare_ring_finish(ring, 10 * SECOND, &error));
}

static void Read(vmmshare_ring* ring) {
  vmmshare_ring_buffer buffer = {sizeof(buffer)};
  for (int i = 1; i <= kItems; ++i) {
    MUST(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
    CHECK(buffer.number == (uint64_t)i && buffer.tag == (uint64_t)(1000 + i));
    CHECK(buffer.size == (uint64_t)(100 * i));
    FAILS(VMMSHARE_INVALID_ARGUMENT, "`buffer` is NULL",
          vmmshare_ring_await(ring, NULL, SECOND, &error));
    MUST(vmmshare_ring_await(ring, &buffer, 10 * SECOND, &error));
    unsigned char* const bytes = Bytes(buffer.address);
    CHECK(bytes[0] == i && bytes[buffer.size - 1] == i);
    bytes[0] = 0;  // It was asked for as writable.
    MUST(vmmshare_ring_pass(ring, &buffer, kStream, 0, &error));
    FAILS(VMMSHARE_FAILED_PRECONDITION, "",
          vmmshare_ring_pass(ring, &buffer, kStream, 0, &error));
  }
  FAILS(VMMSHARE_OUT_OF_RANGE, "",
        vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
  MUST(vmmshare_ring_finish(ring, 10 * SECOND, &error));
}

void BuffersGoThroughARing(void) {
  int child = 0;
  vmmshare_channel* const channel = Fork(&child);
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  EnterContext();
  vmmshare_ring* const ring =
      child != 0 ? OpenWriter(device, channel) : OpenReader(device, channel, 1);
  if (child != 0) {
    Write(ring);
  } else {
    Read(ring);
  }
  vmmshare_ring_close(ring);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
  if (child == 0) exit(0);
  Join(child);
}

// The reader lets go of what it waits for, and the writer hears of it.
void ARingIsAborted(void) {
  int child = 0;
  vmmshare_channel* const channel = Fork(&child);
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  EnterContext();
  vmmshare_ring* const ring =
      child != 0 ? OpenWriter(device, channel) : OpenReader(device, channel, 0);
  vmmshare_ring_buffer buffer = {sizeof(buffer)};
  if (child != 0) {
    // What is acquired waits on the stream; sooner or later it is told.
    vmmshare_status got = VMMSHARE_OK;
    while (got == VMMSHARE_OK) {
      got = vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, NULL);
      if (got != VMMSHARE_OK) break;
      got = vmmshare_ring_pass(ring, &buffer, kStream, 10 * SECOND, NULL);
    }
    CHECK(got == VMMSHARE_ABORTED);
    FAILS(VMMSHARE_ABORTED, "",
          vmmshare_ring_acquire(ring, kStream, SECOND, &buffer, &error));
    // On this end too, and again.
    MUST(vmmshare_ring_abort(ring, &error));
    MUST(vmmshare_ring_abort(ring, &error));
  } else {
    MUST(vmmshare_ring_acquire(ring, kStream, 10 * SECOND, &buffer, &error));
    MUST(vmmshare_ring_abort(ring, &error));
    FAILS(VMMSHARE_ABORTED, "",
          vmmshare_ring_acquire(ring, kStream, SECOND, &buffer, &error));
  }
  vmmshare_ring_close(ring);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
  if (child == 0) exit(0);
  Join(child);
}
