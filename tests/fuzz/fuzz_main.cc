// libFuzzer's entry; TESSERA_FUZZ_TARGET is a function of fuzz_targets.h.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::fuzz::TESSERA_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
