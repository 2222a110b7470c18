#include <stdio.h>
#include <vmm/c/vmmshare.h>

int main(void) {
  vmmshare_driver* driver = NULL;
  vmmshare_error* error = NULL;
  const vmmshare_status status =
      vmmshare_driver_load("/nowhere/libcuda.so.1", &driver, &error);
  if (status == VMMSHARE_OK) return 1;
  puts(vmmshare_error_message(error));
  vmmshare_error_free(error);
  return status == VMMSHARE_NOT_FOUND ? 0 : 1;
}
