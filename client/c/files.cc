// Tensors that a model has in addition to parameters, its buffers, models in files and checkpoints.
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/c/handles.h"
#include "client/c/structs.h"
#include "client/c/tessera.h"
#include "client/session/session_buffers.h"
#include "client/session/session_state.h"
#include "client/session/state_access.h"
#include "layout/stored_dtype.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"

namespace tessera::c_api {
namespace {

absl::StatusOr<NamedTensor> ReadTensor(const tessera_tensor* given) {
  tessera_tensor read;
  RETURN_IF_ERROR(ReadStruct(given, "the tensor", &read));
  if (read.num_dimensions > 0) RETURN_IF_ERROR(CheckNotNull(read.shape, "the tensor's shape"));
  const std::string name = Text(read.name);
  const std::optional<StoredDType> dtype = ParseStoredDType(Text(read.dtype));
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "': files have no dtype '", Text(read.dtype), "'"));
  }
  BufferSpec spec{name, *dtype, {}};
  if (read.num_dimensions > 0) spec.shape.assign(read.shape, read.shape + read.num_dimensions);
  ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(spec));
  if (read.values != nullptr && static_cast<int64_t>(read.size_bytes) != size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' has ", read.size_bytes,
                                                   " bytes instead of ", size_bytes));
  }
  std::string values;
  if (read.values != nullptr) values.assign(static_cast<const char*>(read.values), read.size_bytes);
  return NamedTensor(name, *dtype, spec.shape, std::move(values));
}

std::string NamesJson(const std::vector<std::string>& missing,
                      const std::vector<std::string>& unexpected, nlohmann::json more) {
  more["missing"] = missing;
  more["unexpected"] = unexpected;
  // Names may not be UTF-8. They are replaced, because dump would throw.
  return more.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera;         // NOLINT
using namespace tessera::c_api;  // NOLINT

tessera_tensors* tessera_tensors_new(void) { return new tessera_tensors(); }
void tessera_tensors_delete(tessera_tensors* tensors) { delete tensors; }
int tessera_tensors_add(tessera_tensors* tensors, const tessera_tensor* tensor) {
  auto read = ReadTensor(tensor);
  if (read.ok()) tensors->tensors.push_back(*std::move(read));
  return CodeOf(read.status());
}
size_t tessera_tensors_size(const tessera_tensors* tensors) { return tensors->tensors.size(); }
int tessera_tensors_get(const tessera_tensors* tensors, size_t index, tessera_tensor* out) {
  if (index >= tensors->tensors.size())
    return CodeOf(absl::InvalidArgumentError("there is no such tensor"));
  const NamedTensor& tensor = tensors->tensors[index];
  tessera_tensor written = {};
  // Not copied: the list keeps what these point to, until it changes or is deleted.
  written.name = tensor.name.c_str();
  // Names of dtypes are literals, which end in a zero.
  written.dtype = Name(tensor.dtype).data();
  written.shape = tensor.shape.data();
  written.num_dimensions = tensor.shape.size();
  written.values = tensor.values.data();
  written.size_bytes = tensor.values.size();
  return CodeOf(WriteStruct(written, "the tensor", out));
}

int tessera_set_trainer_tensors(tessera_session* session, const tessera_trainer_tensors* tensors) {
  const absl::Status status = [&]() -> absl::Status {
    tessera_trainer_tensors given;
    RETURN_IF_ERROR(ReadStruct(tensors, "the trainer's tensors", &given));
    RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(given.get), "get"));
    RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(given.take), "take"));
    // The hooks copy the struct, which may be gone when they are called.
    TrainerTensors hooks;
    hooks.get = [given](TensorValues values) -> absl::StatusOr<std::vector<NamedTensor>> {
      tessera_tensors list;
      RETURN_IF_ERROR(
          FromCallback(given.get(given.context, values == TensorValues::kIncluded ? 1 : 0, &list)));
      return std::move(list.tensors);
    };
    hooks.take = [given](const std::vector<NamedTensor>& loaded) {
      const tessera_tensors list{loaded};
      return FromCallback(given.take(given.context, &list));
    };
    StateAccess(session->session.get()).SetTrainerTensors(std::move(hooks));
    return absl::OkStatus();
  }();
  return CodeOf(status);
}

int tessera_set_buffer_hooks(tessera_session* session, const tessera_buffer_hooks* hooks) {
  tessera_buffer_hooks given;
  const absl::Status status = ReadStruct(hooks, "the hooks", &given);
  if (!status.ok()) return CodeOf(status);
  // As above, the hooks copy the struct. Those that the caller leaves out stay unset.
  BufferHooks calls;
  if (given.stage != nullptr)
    calls.stage = [given] { return FromCallback(given.stage(given.context)); };
  if (given.take != nullptr) calls.take = [given] { given.take(given.context); };
  if (given.begin_step != nullptr) calls.begin_step = [given] { given.begin_step(given.context); };
  if (given.restore != nullptr)
    calls.restore = [given] { return FromCallback(given.restore(given.context)); };
  SessionBuffers(session->session.get()).SetHooks(std::move(calls));
  return TESSERA_OK;
}

int tessera_set_buffer(tessera_session* session, int buffer, const void* values,
                       size_t size_bytes) {
  if (size_bytes > 0 && values == nullptr)
    return CodeOf(absl::InvalidArgumentError("values is null"));
  return CodeOf(SessionBuffers(session->session.get())
                    .Set(buffer, {static_cast<const char*>(values), size_bytes}));
}

int tessera_get_buffer(tessera_session* session, int buffer, const void** out, size_t* size_bytes,
                       int* given, uint64_t* sequence) {
  const int size = static_cast<int>(session->session->layout().buffers.size());
  if (buffer < 0 || buffer >= size)
    return CodeOf(absl::InvalidArgumentError(absl::StrCat("no buffer ", buffer, " of ", size)));
  const SessionBuffers buffers(session->session.get());
  const absl::string_view values = buffers.Get(buffer);
  if (out != nullptr) *out = values.data();
  if (size_bytes != nullptr) *size_bytes = values.size();
  if (given != nullptr) *given = buffers.IsGiven(buffer) ? 1 : 0;
  if (sequence != nullptr) *sequence = buffers.sequence(buffer);
  return TESSERA_OK;
}

int tessera_restore_buffers(tessera_session* session) {
  return CodeOf(SessionBuffers(session->session.get()).Restore());
}
int tessera_resume_buffers(tessera_session* session) {
  return CodeOf(SessionBuffers(session->session.get()).Resume());
}

int tessera_save_model(tessera_session* session, const char* path, int64_t max_file_bytes,
                       const char* dtype) {
  const absl::Status status = [&]() -> absl::Status {
    SaveOptions options;
    options.max_file_bytes = max_file_bytes;
    if (dtype != nullptr) {
      ASSIGN_OR_RETURN(options.dtype, ParseDType(dtype));
    }
    return SaveModel(session->session.get(), Text(path), options);
  }();
  return CodeOf(status);
}

int tessera_load_model(tessera_session* session, const char* path, int strict, char** report_json) {
  LoadOptions options;
  options.strict = strict != 0;
  const auto report = LoadModel(session->session.get(), Text(path), options);
  if (report.ok() && report_json != nullptr)
    *report_json = CopyOf(NamesJson(report->missing, report->unexpected, nlohmann::json::object()));
  return CodeOf(report.status());
}

int tessera_save_checkpoint(tessera_session* session, const char* path,
                            const tessera_checkpoint_options* options) {
  const absl::Status status = [&]() -> absl::Status {
    SaveOptions how;
    CheckpointContents contents;
    if (options != nullptr) {
      tessera_checkpoint_options read;
      RETURN_IF_ERROR(ReadStruct(options, "the checkpoint's options", &read));
      if (read.trainer_state_bytes > 0) {
        RETURN_IF_ERROR(CheckNotNull(read.trainer_state, "trainer_state"));
        contents.trainer_state.assign(static_cast<const char*>(read.trainer_state),
                                      read.trainer_state_bytes);
      }
      how.max_file_bytes = read.max_file_bytes;
      how.keep_newest = read.keep_newest;
      how.in_background = read.in_background != 0;
      how.overwrite = read.keep_existing == 0;
      how.in_parts = read.in_parts != 0;
    }
    return SaveCheckpoint(session->session.get(), Text(path), contents, how);
  }();
  return CodeOf(status);
}

void tessera_defer_requested_saves(tessera_session* session) {
  StateAccess(session->session.get()).DeferWantedSaves();
}

int tessera_requested_save(const tessera_session* session) {
  return session->session->state().deferred_save != 0 ? 1 : 0;
}

int tessera_make_requested_save(tessera_session* session, const void* trainer_state,
                                size_t trainer_state_bytes, const char* refusal) {
  if (trainer_state_bytes > 0 && trainer_state == nullptr)
    return CodeOf(absl::InvalidArgumentError("trainer_state is null"));
  absl::StatusOr<CheckpointContents> contents = CheckpointContents();
  contents->trainer_state.assign(static_cast<const char*>(trainer_state), trainer_state_bytes);
  if (refusal != nullptr) contents = absl::UnknownError(refusal);
  OnSaveRequest(session->session.get(),
                [contents = std::move(contents)](int64_t) { return contents; });
  StateAccess(session->session.get()).MakeDeferredSave();
  return TESSERA_OK;
}

int tessera_await_save(tessera_session* session) {
  return CodeOf(AwaitSave(session->session.get()));
}

int tessera_load_checkpoint(tessera_session* session, const char* path, int strict, int model_only,
                            char** description_json, char** trainer_state,
                            size_t* trainer_state_bytes) {
  LoadCheckpointOptions options;
  options.strict = strict != 0;
  options.model_only = model_only != 0;
  const auto loaded = LoadCheckpoint(session->session.get(), Text(path), options);
  if (!loaded.ok()) return CodeOf(loaded.status());
  if (description_json != nullptr) {
    *description_json =
        CopyOf(NamesJson(loaded->missing, loaded->unexpected,
                         {{"step", loaded->step}, {"world_size", loaded->saved_world_size}}));
  }
  if (trainer_state_bytes != nullptr) *trainer_state_bytes = loaded->trainer_state.size();
  // It may contain zeros, so its size is told separately.
  if (trainer_state != nullptr) *trainer_state = CopyOf(loaded->trainer_state);
  return TESSERA_OK;
}
