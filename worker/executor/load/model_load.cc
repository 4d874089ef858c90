#include "worker/executor/load/model_load.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "kernels/kernels.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/agreement.h"
#include "worker/executor/load/load_agreement.h"
#include "worker/executor/load/load_plan.h"

namespace tessera {
namespace {

// A stored model, and what of it goes where.
struct Source {
  std::unique_ptr<ModelSource> model;
  LoadPlan plan;
};

absl::StatusOr<Source> OpenSource(const std::string& path, const LoadRules& rules,
                                  const std::vector<NamedTensorInfo>& buffers,
                                  const ModelLayout& layout, bool first) {
  ASSIGN_OR_RETURN(std::unique_ptr<ModelSource> model, OpenModel(path));
  absl::StatusOr<LoadPlan> plan = PlanLoad(model->tensors(), layout, rules, buffers);
  if (!plan.ok()) return Annotate(plan.status(), path);
  if (first) RETURN_IF_ERROR(CheckGivesAll(*plan));
  return Source{std::move(model), *std::move(plan)};
}

// Whether all ranks have the same file open.
absl::Status CompareFiles(const std::string& path, uint64_t identity, Communicator* communicator) {
  // The identity is of headers, sizes and times, so a file that is copied to each node is another
  // one.
  std::vector<uint64_t> all(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&identity, all.data(), sizeof(identity)));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return AsAgreed(absl::FailedPreconditionError(
        absl::StrCat("load: ranks 0 and ", rank, " see different files at ", path)));
  }
  return absl::OkStatus();
}

absl::Status ReadOwn(const Source& source, const std::vector<ShardSegment>& segments,
                     StateWriter* state, const std::atomic<bool>& stopped) {
  std::vector<char> piece(kPieceOfLoadBytes);
  for (const ShardSegment& segment : segments) {
    const std::string& tensor = source.plan.tensors[segment.unit][segment.parameter];
    if (tensor.empty()) {
      state->Keep(StateArray::kParameter, segment);
      continue;
    }
    RETURN_IF_ERROR(FaultPoint("load.read"));
    // Between slices, so that an epoch that ends does not wait for a whole file.
    if (stopped.load()) return absl::AbortedError("the epoch ended");
    // In pieces that stay in a core's cache between the read and the two stores (docs/adr/0054).
    const int64_t most = kPieceOfLoadBytes / SizeBytes(segment.dtype);
    for (int64_t begin = 0; begin < segment.numel; begin += most) {
      const Values values(piece.data(), std::min(most, segment.numel - begin), segment.dtype);
      RETURN_IF_ERROR(
          source.model->ReadSlice(tensor, segment.parameter_begin_elements + begin, values));
      state->Set(StateArray::kParameter, segment, begin, values);
    }
  }
  return absl::OkStatus();
}

// In the dtype that is wanted.
absl::Status ReadBuffer(const ModelSource& model, const LoadPlan::Buffer& buffer,
                        v1::NamedTensor* to) {
  const TensorInfo& stored = model.tensors().at(buffer.tensor);
  ASSIGN_OR_RETURN(const int64_t numel, NumelOf(stored));
  const StoredDType wanted = buffer.wanted.info.dtype;
  std::string* values = to->mutable_values();
  values->resize((numel * SizeBits(wanted) + 7) / 8);
  const DType dtype = LayoutDType(wanted).value_or(DType::kInt64);
  if (stored.dtype == wanted) {
    RETURN_IF_ERROR(model.ReadStored(buffer.tensor, 0, numel, values->data()));
  } else if (IsHalf(dtype)) {
    std::vector<float> wide(numel);
    RETURN_IF_ERROR(model.ReadSlice(buffer.tensor, 0, Values(absl::MakeSpan(wide))));
    // Rounded through fp32, as parameters are.
    host::CastFp32ToHalf(dtype, wide.data(), reinterpret_cast<uint16_t*>(values->data()), numel);
  } else {
    RETURN_IF_ERROR(model.ReadSlice(buffer.tensor, 0, Values(values->data(), numel, dtype)));
  }
  to->set_name(buffer.wanted.name);
  to->set_dtype(std::string(Name(wanted)));
  for (const int64_t dim : stored.shape) to->add_shape(dim);
  return absl::OkStatus();
}

absl::Status ReadBuffers(const Source& source, const ModelLayout& layout, LoadedState* state,
                         v1::LoadReply* reply) {
  const BufferNumbers numbers = NumbersOf(layout);
  for (const LoadPlan::Buffer& buffer : source.plan.buffers) {
    v1::NamedTensor* to = reply->add_buffers();
    RETURN_IF_ERROR(ReadBuffer(*source.model, buffer, to));
    KeepInState(*to, layout, numbers, state);
  }
  return absl::OkStatus();
}

}  // namespace

BufferNumbers NumbersOf(const ModelLayout& layout) {
  BufferNumbers numbers;
  for (size_t i = 0; i < layout.buffers.size(); ++i)
    numbers.emplace(layout.buffers[i].name, static_cast<int>(i));
  return numbers;
}

void KeepInState(const v1::NamedTensor& loaded, const ModelLayout& layout,
                 const BufferNumbers& numbers, LoadedState* state) {
  const auto found = numbers.find(loaded.name());
  if (found == numbers.end()) return;
  const BufferSpec& buffer = layout.buffers[found->second];
  const std::vector<int64_t> shape(loaded.shape().begin(), loaded.shape().end());
  const absl::StatusOr<int64_t> numel = Numel(buffer);
  // What does not fit goes to the trainer only, which decides.
  const bool fits =
      Name(buffer.dtype) == loaded.dtype() && buffer.shape == shape && numel.ok() &&
      *numel * SizeBits(buffer.dtype) == 8 * static_cast<int64_t>(loaded.values().size());
  if (fits) state->buffers[found->second] = loaded.values();
}

absl::StatusOr<v1::LoadReply> LoadModel(const std::string& path, const LoadRules& rules,
                                        const std::vector<NamedTensorInfo>& buffers,
                                        const ModelLayout& layout,
                                        const std::vector<ShardSegment>& segments,
                                        LoadedState* state, Communicator* communicator,
                                        const std::atomic<bool>* stopped) {
  absl::StatusOr<Source> source = OpenSource(path, rules, buffers, layout, state->first);
  // Before `source` is used: a rank that could not open it leaves here, with all others.
  RETURN_IF_ERROR(AgreeOn("load", source.status(), communicator));
  // Before reading: two versions of a file must not be mixed.
  const uint64_t identity = source->model->identity();
  RETURN_IF_ERROR(CompareFiles(path, identity, communicator));
  v1::LoadReply reply;
  for (const std::string& name : source->plan.missing) reply.add_missing(name);
  for (const std::string& name : source->plan.unexpected) reply.add_unexpected(name);
  absl::Status own = ReadOwn(*source, segments, state->writer, *stopped);
  if (own.ok()) own = ReadBuffers(*source, layout, state, &reply);
  RETURN_IF_ERROR(AgreeOn("load", own, communicator));
  source->model.reset();  // Its descriptors may be many.
  // Files have no lock. Opened again, and compared: a file that was replaced meanwhile is an error.
  const absl::StatusOr<std::unique_ptr<ModelSource>> again = OpenModel(path);
  own = again.status();
  if (again.ok() && (*again)->identity() != identity)
    own = absl::FailedPreconditionError(absl::StrCat(path, " changed while it was read"));
  RETURN_IF_ERROR(AgreeOn("load", own, communicator));
  return reply;
}

}  // namespace tessera
