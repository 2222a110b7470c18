// RETURN_IF_ERROR and ASSIGN_OR_RETURN: a step that may fail, in one line.
//
//   RETURN_IF_ERROR(channel.Send(kBegin, payload, {}, deadline));
//   ASSIGN_OR_RETURN(Welcome welcome, ReceiveWelcome(channel, deadline));
//
// For sources, not for installed headers: macros have no namespace, and a
// program may have its own of these names.
#ifndef VMMSHARE_PLATFORM_BASE_STATUS_MACROS_H_
#define VMMSHARE_PLATFORM_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expression` from the enclosing function unless it is
// OK. `expression` is evaluated once and gives an absl::Status.
#define RETURN_IF_ERROR(expression)                                          \
  do {                                                                       \
    ::absl::Status vmmshare_failed_ = (expression);                          \
    if (ABSL_PREDICT_FALSE(!vmmshare_failed_.ok())) return vmmshare_failed_; \
  } while (false)

// Declares or assigns `target` from the value of `expression`, an
// absl::StatusOr; returns its status from the enclosing function if it has
// none. A `target` whose type has a comma needs parentheses or an alias.
// REQUIRES: a statement of its own, inside braces.
#define ASSIGN_OR_RETURN(target, expression)                               \
  VMMSHARE_ASSIGN_OR_RETURN_(VMMSHARE_CONCAT_(vmmshare_result_, __LINE__), \
                             target, expression)

// NOLINTBEGIN(bugprone-macro-parentheses): a name and a declaration.
#define VMMSHARE_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                                  \
  if (ABSL_PREDICT_FALSE(!result.ok())) {                      \
    return std::move(result).status();                         \
  }                                                            \
  target = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

#define VMMSHARE_CONCAT_(a, b) VMMSHARE_CONCAT_TOKENS_(a, b)
#define VMMSHARE_CONCAT_TOKENS_(a, b) a##b

#endif  // VMMSHARE_PLATFORM_BASE_STATUS_MACROS_H_
