#include "client/c/handles.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "client/c/structs.h"
#include "kernels/narrow_floats.h"

namespace tessera::c_api {
namespace {

std::string& LastError() {
  // By thread, so that another thread's call does not change it before it is read.
  static thread_local std::string message;
  return message;
}

template <typename Half>
void Widen(const tessera_gradient& gradient, std::vector<double>* widened) {
  // Read bytewise: the caller's memory need not be aligned.
  float* to = reinterpret_cast<float*>(widened->data());
  const char* from = static_cast<const char*>(gradient.values);
  for (int64_t i = 0; i < gradient.elements; ++i) {
    Half half;
    memcpy(&half, from + i * sizeof(Half), sizeof(Half));
    to[i] = narrow::Widen(half);
  }
}

}  // namespace

int CodeOf(const absl::Status& status) {
  if (!status.ok()) LastError() = std::string(status.message());
  return static_cast<int>(status.code());
}

absl::Status FromCallback(int code) {
  if (code == TESSERA_OK) return absl::OkStatus();
  // The caller's function may return any number.
  const bool known = code > TESSERA_OK && code <= TESSERA_UNAUTHENTICATED;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      LastError());
}

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

char* CopyOf(absl::string_view text) {
  // malloc, because the caller gives it back by tessera_free, which is free.
  char* copy = static_cast<char*>(malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  if (!text.empty()) memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

absl::Status CheckNotNull(const void* pointer, absl::string_view what) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is null"));
}

absl::Status CheckUnit(const Session& session, int unit) {
  if (unit >= 0 && unit < session.num_units()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no unit ", unit, ": the model has ", session.num_units()));
}

absl::Status CheckParameter(const Session& session, int unit, int parameter) {
  RETURN_IF_ERROR(CheckUnit(session, unit));
  const FlatLayout& flat = session.layout().units[unit].flat;
  const int size = static_cast<int>(flat.parameters().size());
  if (parameter >= 0 && parameter < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no parameter ", parameter, ": unit '", flat.unit_name(), "' has ", size));
}

absl::Status ReadStepOptions(const tessera_step_options* given, StepOptions* options) {
  if (given == nullptr) return absl::OkStatus();
  tessera_step_options read;
  RETURN_IF_ERROR(ReadStruct(given, "the step's options", &read));
  // 0 means the default, so that a cleared struct is a plain step.
  if (read.learning_rate_scale != 0) options->learning_rate_scale = read.learning_rate_scale;
  if (read.gradient_divisor != 0) options->gradient_divisor = read.gradient_divisor;
  if (read.num_groups > 0) RETURN_IF_ERROR(CheckNotNull(read.groups, "groups"));
  for (size_t i = 0; i < read.num_groups; ++i) {
    const tessera_hyper_parameters& group = read.groups[i];
    options->groups.push_back({group.learning_rate, group.beta1, group.beta2, group.epsilon,
                               group.weight_decay, group.momentum});
  }
  if (read.has_weight != 0) options->weight = read.weight;
  options->skip_non_finite = read.skip_non_finite != 0;
  return absl::OkStatus();
}

absl::Status WriteStepResult(const StepResult& result, tessera_step_result* out) {
  if (out == nullptr) return absl::OkStatus();
  tessera_step_result written = {};
  written.step = result.step;
  written.gradient_norm = result.gradient_norm;
  written.skipped = result.skipped ? 1 : 0;
  return WriteStruct(written, "the step's result", out);
}

absl::StatusOr<DType> CheckGradient(const Session& session, int unit,
                                    const tessera_gradient& gradient) {
  RETURN_IF_ERROR(CheckParameter(session, unit, gradient.parameter));
  const PlacedParameter& placed =
      session.layout().units[unit].flat.parameters()[gradient.parameter];
  if (gradient.elements != placed.numel) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient of '", placed.spec.name, "' has ",
                                                   gradient.elements, " elements instead of ",
                                                   placed.numel));
  }
  if (gradient.elements > 0) RETURN_IF_ERROR(CheckNotNull(gradient.values, "a gradient's values"));
  switch (gradient.dtype) {
    case TESSERA_FP32:
      return DType::kFp32;
    case TESSERA_FP64:
      return DType::kFp64;
    case TESSERA_BF16:
      return DType::kBf16;
    case TESSERA_FP16:
      return DType::kFp16;
    default:
      return absl::InvalidArgumentError(absl::StrCat("the gradient of '", placed.spec.name,
                                                     "' is of an unknown dtype, ", gradient.dtype));
  }
}

absl::StatusOr<ConstValues> ReadGradient(const Session& session, int unit,
                                         const tessera_gradient& gradient,
                                         std::vector<double>* widened) {
  ASSIGN_OR_RETURN(const DType dtype, CheckGradient(session, unit, gradient));
  // Of another dtype than the unit's, which AddGradient then refuses by name, too.
  if (!IsHalf(dtype)) return ConstValues(gradient.values, gradient.elements, dtype);
  if (session.full_dtype(unit) == DType::kFp64) {
    const PlacedParameter& placed =
        session.layout().units[unit].flat.parameters()[gradient.parameter];
    return absl::InvalidArgumentError(absl::StrCat("the gradient of '", placed.spec.name,
                                                   "' is of a dtype (", gradient.dtype,
                                                   ") that does not fit its unit"));
  }
  // A vector of doubles, so that the memory is aligned for floats too.
  widened->resize(static_cast<size_t>(gradient.elements + 1) / 2);
  if (dtype == DType::kBf16) Widen<narrow::Bf16>(gradient, widened);
  if (dtype == DType::kFp16) Widen<narrow::Fp16>(gradient, widened);
  return ConstValues(widened->data(), gradient.elements, DType::kFp32);
}

}  // namespace tessera::c_api

using tessera::c_api::CopyOf;

const char* tessera_version(void) { return tessera::kVersion; }
int tessera_abi_version(void) { return TESSERA_ABI_VERSION; }
const char* tessera_last_error(void) { return tessera::c_api::LastError().c_str(); }
void tessera_set_error(const char* message) {
  tessera::c_api::LastError() = tessera::c_api::Text(message);
}
void tessera_free(char* text) { free(text); }
