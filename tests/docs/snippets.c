/* What docs/c.md shows, compiled. tests/c runs the same calls. */
#include <stdio.h>

#include "vmm/c/vmmshare.h"

void vmmshare_docs_pool(void);

void vmmshare_docs_pool(void) {
#include <c.pool.inc>
}
