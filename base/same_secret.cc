#include "base/same_secret.h"

namespace tessera {

bool IsSameSecret(absl::string_view secret, absl::string_view shown) {
  if (secret.size() != shown.size()) return false;
  unsigned char difference = 0;
  // To the end in any case: an early return would tell by its time how many bytes are right.
  for (size_t i = 0; i < secret.size(); ++i)
    difference |= static_cast<unsigned char>(secret[i] ^ shown[i]);
  return difference == 0;
}

}  // namespace tessera
