// Compares a secret with what somebody has shown. Pure.
#ifndef TESSERA_BASE_SAME_SECRET_H_
#define TESSERA_BASE_SAME_SECRET_H_

#include "absl/strings/string_view.h"

namespace tessera {

// Whether both are the same bytes. Takes as long for each wrong text of the secret's length, so
// that its time does not tell how much of it is right.
bool IsSameSecret(absl::string_view secret, absl::string_view shown);

}  // namespace tessera

#endif  // TESSERA_BASE_SAME_SECRET_H_
