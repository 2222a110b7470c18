// What memory is, wherever it came from, and where it is put.
#define _POSIX_C_SOURCE 200809L

#include <unistd.h>

#include "tests/c/c_test.h"

static void CheckText(vmmshare_text* text, const char* expected) {
  if (strcmp(vmmshare_text_get(text), expected) != 0) {
    fprintf(stderr, "not %s but %s\n", expected, vmmshare_text_get(text));
    exit(1);
  }
  vmmshare_text_free(text);
}

static vmmshare_memory* DeviceMemory(const vmmshare_device* device,
                                     uint32_t flags) {
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  options.flags = flags;
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  return memory;
}

// What only memory that was created here is asked, or has.
static void CheckNotCreatedHere(vmmshare_memory* memory) {
  vmmshare_text* text = NULL;
  vmmshare_dma_buf buf;
  uint32_t count = 7;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "ask where it was created",
        vmmshare_memory_dma_bufs(memory, 0, 0, 0, &buf, 1, &count, &error));
  CHECK(count == 0);
  FAILS(VMMSHARE_FAILED_PRECONDITION, "created here",
        vmmshare_memory_write(memory, 0, vmmshare_memory_address(memory), 1,
                              &error));
  MUST(vmmshare_memory_passed_over(memory, &text, &error));
  CheckText(text, "[]\n");
}

// cudaMalloc()'s, by a kind that is weaker.
void MemoryOfTheDriverIsAdopted(void) {
  vmmshare_driver* const driver = Driver();
  int (*allocate)(uint64_t*, size_t);
  int (*release)(uint64_t);
  Find("cuMemAlloc_v2", &allocate);
  Find("cuMemFree_v2", &release);
  EnterContext();
  uint64_t block = 0;
  uint64_t beside = 0;
  CHECK(allocate(&block, 4096) == 0 && allocate(&beside, 4096) == 0);
  vmmshare_memory* memory = NULL;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "",
        vmmshare_memory_adopt(driver, block, 4096, &memory, &error));
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`accept` is 1",
        vmmshare_memory_adopt_as(driver, block, 4096, VMMSHARE_KIND_POSIX_FD,
                                 &memory, &error));
  CHECK(memory == NULL);
  const uint32_t kind = VMMSHARE_KIND_LEGACY_IPC;
  MUST(vmmshare_memory_adopt_as(driver, block + 256, 512, kind, &memory,
                                &error));
  CHECK(vmmshare_memory_kinds(memory) == kind);
  CHECK(vmmshare_memory_address(memory) == block + 256);
  CHECK(vmmshare_memory_offset(memory) == 256);
  CHECK(vmmshare_memory_size(memory) == 512);
  CHECK(vmmshare_memory_requested_size(memory) == 512);
  CHECK(vmmshare_memory_numa_node(memory) == -1);
  // Whoever opens it sees all that the driver has around it.
  uint64_t base = 0;
  uint64_t size = 0;
  vmmshare_memory_disclosed(memory, &base, &size);
  CHECK(base <= block && base + size >= block + 4096);
  vmmshare_memory_disclosed(memory, NULL, NULL);
  vmmshare_text* text = NULL;
  MUST(vmmshare_memory_weakness(memory, &text, &error));
  CHECK(strstr(vmmshare_text_get(text), "legacy CUDA IPC") != NULL);
  vmmshare_text_free(text);
  MUST(vmmshare_memory_neighbours(memory, &text, &error));
  char number[32];
  snprintf(number, sizeof(number), "%llu", (unsigned long long)beside);
  const int is_beside = beside >= base && beside < base + size;
  CHECK((strstr(vmmshare_text_get(text), number) != NULL) == is_beside);
  vmmshare_text_free(text);

  CheckNotCreatedHere(memory);
  int capable = 7;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "vmmshare_dma_bufs()",
        vmmshare_memory_rdma(memory, &capable, &text, &error));
  CHECK(capable == 0 && text == NULL);
  int64_t return_in_ns = 0;
  FAILS(VMMSHARE_FAILED_PRECONDITION, "no lease",
        vmmshare_memory_lease(memory, &return_in_ns, &error));
  CHECK(return_in_ns == VMMSHARE_FOREVER);
  // Its handle is bytes, and no descriptor.
  static const uint8_t kNothing[64];
  vmmshare_raw_handle raw;
  MUST(vmmshare_memory_export(memory, 0, kind, &raw, &error));
  CHECK(raw.kind == kind && raw.os_handle == -1);
  CHECK(memcmp(raw.fabric, kNothing, sizeof(kNothing)) != 0);
  vmmshare_memory_close(memory);
  CHECK(release(block) == 0 && release(beside) == 0);
  vmmshare_driver_close(driver);
}

void ImportedMemoryIsDescribed(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_device* second = NULL;
  MUST(vmmshare_device_open(driver, 1, &second, &error));
  vmmshare_memory* const own = DeviceMemory(device, VMMSHARE_RDMA_TRY);
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  MUST(vmmshare_server_start(NULL, &server, &error));
  MUST(vmmshare_server_share_memory(server, own, &share, &error));
  const char* const text = vmmshare_share_text(share);

  // Of which device the CPU would be, or nothing, is said before it is opened.
  const vmmshare_device* devices[2] = {device, second};
  vmmshare_import_options options = {sizeof(options)};
  options.device_count = 2;
  vmmshare_memory* memory = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`devices` is NULL",
        vmmshare_memory_open(driver, text, &options, SECOND, &memory, &error));
  options.devices = devices;
  devices[1] = NULL;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_device is NULL",
        vmmshare_memory_open(driver, text, &options, SECOND, &memory, &error));
  options.flags = 4;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`flags` is 4",
        vmmshare_memory_open(driver, text, &options, SECOND, &memory, &error));
  options.flags = 0;
  devices[1] = second;
  MUST(vmmshare_memory_open(driver, text, &options, 10 * SECOND, &memory,
                            &error));
  uint8_t uuid[16];
  uint8_t expected[16];
  vmmshare_device_uuid(device, expected);
  vmmshare_memory_device_uuid(own, uuid);
  CHECK(memcmp(uuid, expected, sizeof(uuid)) == 0);
  memset(uuid, 0, sizeof(uuid));
  vmmshare_memory_device_uuid(memory, uuid);
  CHECK(memcmp(uuid, expected, sizeof(uuid)) == 0);
  CHECK(vmmshare_memory_numa_node(memory) == -1);
  CHECK(vmmshare_memory_chunks(memory) == 1);
  CHECK(vmmshare_memory_offset(memory) == 0);
  CHECK(vmmshare_memory_kinds(memory) == 0);
  uint64_t base = 0;
  uint64_t size = 0;
  vmmshare_memory_disclosed(memory, &base, &size);
  CHECK(base == 0 && size == 0);
  vmmshare_text* told = NULL;
  MUST(vmmshare_memory_weakness(memory, &told, &error));
  CheckText(told, "");
  MUST(vmmshare_memory_neighbours(memory, &told, &error));
  CheckText(told, "[]\n");
  // What network cards may do is the owner's to say, and comes with it.
  int of_owner = 7;
  int capable = 7;
  MUST(vmmshare_memory_rdma(own, &of_owner, NULL, &error));
  MUST(vmmshare_memory_rdma(memory, &capable, &told, &error));
  CHECK(capable == of_owner);
  CheckText(told, "");
  CheckNotCreatedHere(memory);
  // Each of the two devices has it mapped.
  int32_t ordinal = -1;
  MUST(vmmshare_reached_from(driver, vmmshare_memory_address(memory), &ordinal,
                             &error));
  CHECK(ordinal == 0);
  vmmshare_memory_close(memory);
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(own);
  vmmshare_device_close(second);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}

// The thread has no context, as of a program that uses none.
static void CheckWrittenToTheHost(const vmmshare_device* device) {
  int (*make_current)(void*);
  Find("cuCtxSetCurrent", &make_current);
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  options.flags = VMMSHARE_ON_HOST;
  vmmshare_memory* from = NULL;
  vmmshare_memory* memory = NULL;
  MUST(vmmshare_memory_create(device, &options, &from, &error));
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  memset(Bytes(vmmshare_memory_address(from)), 3, 4096);
  CHECK(make_current(NULL) == 0);
  MUST(vmmshare_memory_write(memory, 4, vmmshare_memory_address(from), 8,
                             &error));
  const uint8_t expected[16] = {0, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3, 0};
  CHECK(memcmp(Bytes(vmmshare_memory_address(memory)), expected, 16) == 0);
  vmmshare_memory_close(memory);
  vmmshare_memory_close(from);
}

void MemoryIsPlaced(void) {
  vmmshare_driver* const driver = Driver();
  vmmshare_device* const device = Device(driver);
  vmmshare_memory* memory = DeviceMemory(device, VMMSHARE_PRIVATE);
  CHECK(vmmshare_memory_kinds(memory) == 0);
  vmmshare_raw_handle raw;
  FAILS(
      VMMSHARE_FAILED_PRECONDITION, "",
      vmmshare_memory_export(memory, 0, VMMSHARE_KIND_POSIX_FD, &raw, &error));
  CHECK(raw.os_handle == -1 && raw.size == 0);
  // No kind is 3, and none is all of them.
  const uint32_t none[] = {0, 3, 9, UINT32_MAX};
  for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); ++i) {
    FAILS(VMMSHARE_INVALID_ARGUMENT, "Give one of VMMSHARE_KIND_*",
          vmmshare_memory_export(memory, 0, none[i], &raw, &error));
    FAILS(VMMSHARE_INVALID_ARGUMENT, "Give one of VMMSHARE_KIND_*",
          vmmshare_device_probe(device, none[i], &error));
    raw.kind = none[i];
    vmmshare_memory* imported = NULL;
    FAILS(
        VMMSHARE_INVALID_ARGUMENT, "Give one of VMMSHARE_KIND_*",
        vmmshare_memory_import(device, &raw, 1, 0, 0, NULL, &imported, &error));
  }
  const uint32_t kinds[] = {VMMSHARE_KIND_POSIX_FD, VMMSHARE_KIND_WIN32,
                            VMMSHARE_KIND_FABRIC, VMMSHARE_KIND_LEGACY_IPC,
                            VMMSHARE_KIND_STREAM_POOL};
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    const vmmshare_status probed =
        vmmshare_device_probe(device, kinds[i], NULL);
    CHECK(probed != VMMSHARE_INVALID_ARGUMENT);
    CHECK(i != 0 || probed == VMMSHARE_OK);
    CHECK(i != 1 || probed != VMMSHARE_OK);  // Of another operating system.
  }
  vmmshare_memory_close(memory);

  // Peers have access too.
  vmmshare_memory_options options = {sizeof(options)};
  options.size = 4096;
  options.peer_count = 1;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "`peers` is NULL",
        vmmshare_memory_create(device, &options, &memory, &error));
  const vmmshare_device* peers[1] = {NULL};
  options.peers = peers;
  FAILS(VMMSHARE_INVALID_ARGUMENT, "vmmshare_device is NULL",
        vmmshare_memory_create(device, &options, &memory, &error));
  vmmshare_device* second = NULL;
  MUST(vmmshare_device_open(driver, 1, &second, &error));
  peers[0] = second;
  MUST(vmmshare_memory_create(device, &options, &memory, &error));
  int (*access)(uint64_t*, const void*, uint64_t);
  Find("cuMemGetAccess", &access);
  const int of_second[2] = {1, 1};  // CU_MEM_LOCATION_TYPE_DEVICE, its ordinal.
  uint64_t flags = 0;
  CHECK(access(&flags, of_second, vmmshare_memory_address(memory)) == 0);
  CHECK(flags == 3);  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
  vmmshare_memory_close(memory);
  CheckWrittenToTheHost(device);

  vmmshare_device_close(second);
  vmmshare_device_close(device);
  vmmshare_driver_close(driver);
}
