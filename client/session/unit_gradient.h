// What a session knows of the gradient since the last step: of a unit, and of all. Plain values.
#ifndef TESSERA_CLIENT_SESSION_UNIT_GRADIENT_H_
#define TESSERA_CLIENT_SESSION_UNIT_GRADIENT_H_

#include <cstdint>
#include <vector>

#include "layout/dtype.h"

namespace tessera {

struct UnitGradient {
  bool begun = false;          // Holds values that are not reduced yet.
  bool on_device = false;      // They are in the slot on the GPU.
  DType dtype = DType::kFp32;  // The slot's: bf16, fp16 or the full dtype.
  DType travels_in = DType::kFp32;
  bool after_hook_ran = false;    // On what was reduced.
  bool reduced = false;           // Something was reduced since the last step.
  std::vector<char> contributed;  // By parameter.
  uint32_t submitted = 0;         // Reductions in this epoch.

  void Drop() {
    begun = on_device = after_hook_ran = reduced = false;
    contributed.assign(contributed.size(), 0);
  }
};

// What ClipGradNorm did.
struct Clipping {
  bool done = false;
  double coefficient = 1;  // By which the step multiplies the gradient.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_UNIT_GRADIENT_H_
