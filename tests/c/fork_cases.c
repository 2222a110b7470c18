// What a forked child can use, and that it waits for none of its parent's threads.
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/c/c_test.h"

static void* const kStream = (void*)1;  // CU_STREAM_LEGACY.

// Whether a child may be forked beside a busy thread, and may allocate then.
static int MayForkBesideThreads(void) {
  if (getenv("VMMSHARE_TEST_EMULATOR") != NULL) {
    printf("not run: qemu-user: a fork may leave the emulator locked\n");
    return 0;
  }
  void* const self = dlopen(NULL, RTLD_NOW);
  CHECK(self != NULL);
  const int is_instrumented =
      dlsym(self, "__asan_init") != NULL || dlsym(self, "__tsan_init") != NULL;
  CHECK(dlclose(self) == 0);
  if (is_instrumented) {
    printf("not run: a sanitizer's allocator may stay locked in a child\n");
  }
  return !is_instrumented;
}

typedef struct {
  pthread_mutex_t mutex;
  int should_end;  // Guarded by it.
} Busy;

static int ShouldEnd(Busy* busy) {
  CHECK(pthread_mutex_lock(&busy->mutex) == 0);
  const int should_end = busy->should_end;
  CHECK(pthread_mutex_unlock(&busy->mutex) == 0);
  return should_end;
}

static void* AllocateAndFree(void* argument) {
  while (!ShouldEnd(argument)) {
    for (int i = 0; i < 100; ++i) {
      void* const block = vmmshare_torch_alloc(4096, 0, kStream);
      CHECK(block != NULL);
      vmmshare_torch_free(block, 4096, 0, kStream);
    }
  }
  return NULL;
}

// Where it hangs, SIGALRM ends it.
static void UseHooks(vmmshare_pool* pool, void* block) {
  alarm(30);
  vmmshare_torch_free(block, 4096, 0, kStream);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
        vmmshare_hooks_last_error(&error));
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(vmmshare_torch_alloc(4096, 0, kStream) == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
        vmmshare_hooks_last_error(&error));
  MUST(vmmshare_torch_set_pool(0, NULL, &error));
  MUST(vmmshare_torch_set_region(0, NULL, &error));
  FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
        vmmshare_torch_set_pool(0, pool, &error));
  CHECK(vmmshare_cupy_malloc(pool, 4096, 0) == NULL);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
        vmmshare_hooks_last_error(&error));
  const uint64_t address = (uint64_t)(uintptr_t)block;
  uint8_t ticket[VMMSHARE_BLOCK_TICKET_BYTES];
  uint32_t which = 7;
  uint64_t offset = 0;
  size_t count = 7;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "forked child",
        vmmshare_tickets_around(&address, 1, ticket, &which, &offset, &count,
                                &error));
  CHECK(count == 0);
}

void HooksOfAForkedChildWaitForNobody(void) {
  if (!MayForkBesideThreads()) return;
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, NULL, &pool, &error));
  MUST(vmmshare_torch_set_pool(0, pool, &error));
  void* const block = vmmshare_torch_alloc(4096, 0, kStream);
  CHECK(block != NULL);
  Busy busy = {PTHREAD_MUTEX_INITIALIZER, 0};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, &AllocateAndFree, &busy) == 0);
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      UseHooks(pool, block);
      _exit(0);
    }
    Join(child);
  }
  CHECK(pthread_mutex_lock(&busy.mutex) == 0);
  busy.should_end = 1;
  CHECK(pthread_mutex_unlock(&busy.mutex) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  // What the children were refused is nothing to their parent.
  MUST(vmmshare_hooks_last_error(&error));
  vmmshare_torch_free(block, 4096, 0, kStream);
  MUST(vmmshare_hooks_last_error(&error));
  MUST(vmmshare_torch_set_pool(0, NULL, &error));
  vmmshare_pool_close(pool);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

static void UseAnOwnPool(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_pool* pool = NULL;
  MUST(vmmshare_pool_create(device, NULL, &pool, &error));
  MUST(vmmshare_torch_set_pool(0, pool, &error));
  void* const block = vmmshare_torch_alloc(4096, 0, kStream);
  MUST(vmmshare_hooks_last_error(&error));
  CHECK(block != NULL);
  const uint64_t inside = (uint64_t)(uintptr_t)block + 100;
  uint8_t ticket[VMMSHARE_BLOCK_TICKET_BYTES];
  uint32_t which = 7;
  uint64_t offset = 0;
  size_t count = 0;
  MUST(vmmshare_tickets_around(&inside, 1, ticket, &which, &offset, &count,
                               &error));
  CHECK(count == 1 && which == 0 && offset == 100);
  vmmshare_torch_free(block, 4096, 0, kStream);
  FAILS(VMMSHARE_NOT_FOUND, "no block of a pool of this process",
        vmmshare_tickets_around(&inside, 1, ticket, &which, &offset, &count,
                                &error));
  void* const cupys = vmmshare_cupy_malloc(pool, 4096, 0);
  CHECK(cupys != NULL);
  vmmshare_cupy_free(pool, cupys, 0);
  vmmshare_region* region = NULL;
  MUST(vmmshare_region_create(device, &region, &error));
  MUST(vmmshare_torch_set_region(0, region, &error));
  void* const regions = vmmshare_torch_region_alloc(4096, 0, kStream);
  CHECK(regions != NULL);
  vmmshare_torch_region_free(regions, 4096, 0, kStream);
  MUST(vmmshare_hooks_last_error(&error));
}

// Its parent had used vmmshare, and no driver, before it forked.
void AForkedChildHasPoolsOfItsOwn(void) {
  vmmshare_keeper* keeper = NULL;
  FAILS(VMMSHARE_NOT_FOUND, "",
        vmmshare_keeper_connect("/nonexistent/keeper", 0, &keeper, &error));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    UseAnOwnPool();
    _exit(0);
  }
  Join(child);
}
