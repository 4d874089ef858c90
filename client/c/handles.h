// What the C interface's handles are, and how its functions turn statuses into codes.
#ifndef TESSERA_CLIENT_C_HANDLES_H_
#define TESSERA_CLIENT_C_HANDLES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/c/tessera.h"
#include "tessera/checkpoint.h"
#include "tessera/local_shards.h"
#include "tessera/session.h"
#include "tessera/session_options.h"

struct tessera_session {
  std::unique_ptr<tessera::Session> session;
};

struct tessera_shards {
  std::unique_ptr<tessera::LocalShards> shards;
};

struct tessera_tensors {
  std::vector<tessera::NamedTensor> tensors;
};

namespace tessera::c_api {

// Notes the message of a failure for tessera_last_error().
int CodeOf(const absl::Status& status);
// What a callback returned, with the message that it set.
absl::Status FromCallback(int code);
// A null pointer is the empty string.
std::string Text(const char* text);
// A copy for tessera_free, with a zero after its end; null where memory is short.
char* CopyOf(absl::string_view text);

// Errors: InvalidArgument  naming the function's argument that is null.
absl::Status CheckNotNull(const void* pointer, absl::string_view what);
absl::Status CheckUnit(const Session& session, int unit);
absl::Status CheckParameter(const Session& session, int unit, int parameter);

// Null: the defaults. Errors: InvalidArgument
absl::Status ReadStepOptions(const tessera_step_options* given, StepOptions* options);
absl::Status WriteStepResult(const StepResult& result, tessera_step_result* out);
// That it is of the unit's parameter, with all of its elements. Returns its dtype.
absl::StatusOr<DType> CheckGradient(const Session& session, int unit,
                                    const tessera_gradient& gradient);
// In the unit's full dtype; `widened` keeps the bytes where the gradient is in another one.
absl::StatusOr<ConstValues> ReadGradient(const Session& session, int unit,
                                         const tessera_gradient& gradient,
                                         std::vector<double>* widened);

}  // namespace tessera::c_api

#endif  // TESSERA_CLIENT_C_HANDLES_H_
