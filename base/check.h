// Assertions of what cannot happen: the process ends, saying what was violated and where.
// Never for input from a wire, a file or a caller: that gets a Status.
#ifndef TESSERA_BASE_CHECK_H_
#define TESSERA_BASE_CHECK_H_

#include "absl/base/optimization.h"

namespace tessera {
[[noreturn]] void CheckFailed(const char* file, int line, const char* what);
}  // namespace tessera

#define TESSERA_CHECK(condition)                                                                  \
  do {                                                                                            \
    if (ABSL_PREDICT_FALSE(!(condition))) ::tessera::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // TESSERA_BASE_CHECK_H_
