// A range of torch's profiler, or of NVTX by its emit_nvtx: "tessera::pre_forward (blocks.2)". It costs
// a look at a flag while nobody profiles. Thread-compatible.
#ifndef TESSERA_CLIENT_TORCH_PROFILER_RANGE_H_
#define TESSERA_CLIENT_TORCH_PROFILER_RANGE_H_

#include <ATen/record_function.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

class ProfilerRange {
 public:
  // Begins it; the destructor ends it. An empty `unit` is the root's.
  ProfilerRange(absl::string_view what, absl::string_view unit)
      : range_(at::RecordScope::USER_SCOPE) {
    if (!range_.isActive()) return;
    range_.before(absl::StrCat("tessera::", what, " (", unit.empty() ? "root" : unit, ")"));
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  at::RecordFunction range_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_PROFILER_RANGE_H_
