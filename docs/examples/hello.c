// hello_c DRIVER            allocates 1 GiB, prints a ticket, waits for Enter
// hello_c DRIVER TICKET     opens it in another process, read-only
//
// DRIVER is "system", or the path of the host-memory driver: what hello.cc and
// python/hello.py do, in C.
#include <stdio.h>
#include <string.h>

#include "vmm/c/vmmshare.h"

static int Share(const vmmshare_driver* driver, vmmshare_error** error) {
  vmmshare_device* device = NULL;
  vmmshare_memory* memory = NULL;
  vmmshare_server* server = NULL;
  vmmshare_share* share = NULL;
  const vmmshare_memory_options options = {.struct_size = sizeof options,
                                           .size = 1u << 30};
  int works =
      vmmshare_device_open(driver, 0, &device, error) == VMMSHARE_OK &&
      vmmshare_memory_create(device, &options, &memory, error) == VMMSHARE_OK &&
      vmmshare_server_start(NULL, &server, error) == VMMSHARE_OK &&
      vmmshare_server_share_memory(server, memory, &share, error) ==
          VMMSHARE_OK;
  if (works) {
    puts(vmmshare_share_text(share));
    if (fflush(stdout) == 0) getchar();
  }
  vmmshare_share_close(share);
  vmmshare_server_close(server);
  vmmshare_memory_close(memory);
  vmmshare_device_close(device);
  return works;
}

static int Open(const vmmshare_driver* driver, const char* ticket,
                vmmshare_error** error) {
  const int64_t ten_seconds = 10000000000;
  vmmshare_memory* memory = NULL;
  if (vmmshare_memory_open(driver, ticket, NULL, ten_seconds, &memory, error) !=
      VMMSHARE_OK) {
    return 0;
  }
  // vmmshare_memory_address(memory) is a device pointer to it.
  printf("opened %llu bytes\n",
         (unsigned long long)vmmshare_memory_size(memory));
  vmmshare_memory_close(memory);
  return 1;
}

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "system";
  vmmshare_driver* driver = NULL;
  vmmshare_error* error = NULL;
  const vmmshare_status loaded =
      strcmp(name, "system") == 0 ? vmmshare_driver_load_system(&driver, &error)
                                  : vmmshare_driver_load(name, &driver, &error);
  int works = loaded == VMMSHARE_OK && (argc > 2 ? Open(driver, argv[2], &error)
                                                 : Share(driver, &error));
  if (!works) {
    fprintf(stderr, "%s\n%s\n", vmmshare_error_message(error),
            vmmshare_error_remedy(error));
  } else if (fflush(stdout) != 0 || ferror(stdout)) {
    fputs("standard output cannot be written to\n", stderr);
    works = 0;
  }
  vmmshare_error_free(error);
  vmmshare_driver_close(driver);
  return works ? 0 : 1;
}
