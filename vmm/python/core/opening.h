// What memory, restorable memory and pools of another process are opened by: one
// text, on a thread that Ctrl-C does not wait for.
#ifndef VMMSHARE_VMM_PYTHON_CORE_OPENING_H_
#define VMMSHARE_VMM_PYTHON_CORE_OPENING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "vmm/python/core/options.h"
#include "vmm/python/core/text.h"
#include "vmm/python/core/wait.h"

namespace vmm::python {

// What `open`, which is vmmshare_memory_open() or one of its shape, makes of
// `text`; `close` closes it. Raises what it answers, ValueError for a text with a
// zero byte, and as NanosecondsToAsk() for a `timeout` that is none.
template <typename T, typename Close, typename Open>
std::shared_ptr<T> OpenByText(const std::shared_ptr<vmmshare_driver>& driver,
                              Close close, Open open, const std::string& text,
                              const ImportChoice& choice,
                              nanobind::handle timeout) {
  WithoutNul(text);
  const std::int64_t timeout_ns = NanosecondsToAsk(timeout);
  return ConnectOnAThread<T>(
      std::move(close), timeout_ns,
      [driver, open, text, choice](std::int64_t round_ns, T** made,
                                   vmmshare_error** error) {
        const vmmshare_import_options options = choice.options();
        return open(driver.get(), text.c_str(), &options, round_ns, made,
                    error);
      });
}

}  // namespace vmm::python

#endif  // VMMSHARE_VMM_PYTHON_CORE_OPENING_H_
