// What can be shared on this machine, and why the rest cannot.
#ifndef VMMSHARE_VMM_C_DOCTOR_H_
#define VMMSHARE_VMM_C_DOCTOR_H_

#include "vmm/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// What `vmmshare doctor --json` prints; docs/doctor.md has the fields.
// `driver` is the absolute path of one, or NULL for the system's. A driver that
// does not load is part of the report, and not an error.
VMMSHARE_API vmmshare_status vmmshare_doctor(const char* driver,
                                             vmmshare_text** json,
                                             vmmshare_error** error);
// The same, and `*text` is what `vmmshare doctor` prints, of one look.
VMMSHARE_API vmmshare_status vmmshare_doctor_report(const char* driver,
                                                    vmmshare_text** json,
                                                    vmmshare_text** text,
                                                    vmmshare_error** error);

// The command-line tool, with the words after its name: what `vmmshare doctor`
// and the rest do. Returns the exit code, 2 for a NULL among the words; writes
// to the process's own streams. Those that are closed are /dev/null afterwards,
// where what is written fails. `keep` returns when the process is asked to end
// (SIGTERM, SIGINT, SIGHUP), and is for a process without other threads: one that
// has not blocked these would be ended by them. Afterwards they do what they did
// before.
VMMSHARE_API int32_t vmmshare_main(int32_t argc, const char* const* argv);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VMMSHARE_VMM_C_DOCTOR_H_
