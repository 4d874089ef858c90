// A stable 64-bit hash of a whole model's layout, compared between ranks before anything else.
// The same on every machine and in every version; any difference in names, shapes, dtypes,
// requires_grad, sharing, alignment or world size changes it.
#ifndef TESSERA_LAYOUT_LAYOUT_DIGEST_H_
#define TESSERA_LAYOUT_LAYOUT_DIGEST_H_

#include <cstdint>

#include "layout/model_layout.h"

namespace tessera {

uint64_t LayoutDigest(const ModelLayout& layout);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_LAYOUT_DIGEST_H_
