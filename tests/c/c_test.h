// What the sources of c_test have in common. A case ends the process when
// something is not so.
#ifndef VMMSHARE_TESTS_C_C_TEST_H_
#define VMMSHARE_TESTS_C_C_TEST_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/c/vmmshare.h"

#define SECOND INT64_C(1000000000)

// The path of the host-memory driver.
extern const char* driver_path;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

// `call` has `error` as its last argument.
#define MUST(call)                                                  \
  do {                                                              \
    vmmshare_error* error = NULL;                                   \
    if ((call) != VMMSHARE_OK) {                                    \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
              vmmshare_error_message(error));                       \
      exit(1);                                                      \
    }                                                               \
    CHECK(error == NULL);                                           \
  } while (0)

// `call` fails with `status`, and its error says `part`.
#define FAILS(status, part, call)                                        \
  do {                                                                   \
    vmmshare_error* error = NULL;                                        \
    const vmmshare_status got = (call);                                  \
    if (got != (status) ||                                               \
        strstr(vmmshare_error_message(error), (part)) == NULL) {         \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, \
              vmmshare_status_name(got), vmmshare_error_message(error)); \
      exit(1);                                                           \
    }                                                                    \
    CHECK(vmmshare_error_status(error) == (status));                     \
    CHECK(strpbrk(vmmshare_error_message(error), "\n\r\033") == NULL);   \
    CHECK(strpbrk(vmmshare_error_remedy(error), "\n\r\033") == NULL);    \
    CHECK(vmmshare_error_remedy(error)[0] != '\0');                      \
    vmmshare_error_free(error);                                          \
  } while (0)

vmmshare_driver* Driver(void);
vmmshare_device* Device(const vmmshare_driver* driver);
vmmshare_memory* HostMemory(const vmmshare_device* device, uint64_t size);
unsigned char* Bytes(uint64_t address);

// A call of the driver's, of which these programs have no header. `function` is
// the address of a pointer to it.
void Find(const char* name, void* function);
// Makes the primary context of device 0 current.
void EnterContext(void);

// Waits until `child` has ended, which it does with 0.
void Join(int child);

// Cases of other sources.
void BuffersGoThroughARing(void);
void ARingIsAborted(void);
void AnExchangeThatFailsIsNamed(void);
void ARankWithoutADeviceTakesPart(void);
void WhatAnExchangeSaysIsChecked(void);
void MemoryOfTheDriverIsAdopted(void);
void ImportedMemoryIsDescribed(void);
void MemoryIsPlaced(void);
void AServerHasItsLimits(void);
void AnOwnerThatHasEndedWantsNothingBack(void);
void FencesAreMadeByTheirOwner(void);
void WhatAForkedProcessMayUseIsQuarantined(void);
void HooksOfAForkedChildWaitForNobody(void);
void AForkedChildHasPoolsOfItsOwn(void);
void OtherMemoryThanTheWritersIsRefused(void);
void SignalsAreAsTheyWereAfterATool(void);
void TheToolShowsWhatIsKept(void);
void BlocksAreAskedBack(void);
void WhoClosesTheLastBlockWaitsForNobody(void);
void WhoClosesAPoolWaitsForNoStream(void);
void APoolEndsWithItsLastBlock(void);
void APoolIsAsLargeAsItMayBe(void);
void WhatADeviceCannotIsTold(void);

#endif  // VMMSHARE_TESTS_C_C_TEST_H_
