#include "worker/keeper/state_snapshot.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/device/host/kernels.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

constexpr int64_t kCopyBytes = 1 << 20;
// How often a wait looks whether it was cancelled.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

absl::Status CheckDType(DType stored, DType wanted, const std::string& tensor) {
  const bool narrower = wanted == DType::kFp32 || IsHalf(wanted);
  if (wanted == stored || narrower) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor, "' is kept in ", Name(stored),
                                                 ": it cannot be read as ", Name(wanted)));
}

void Convert(DType from, const std::string& source, DType to, std::string* out) {
  const int64_t count = static_cast<int64_t>(source.size()) / SizeBytes(from);
  out->resize(count * SizeBytes(to));
  if (from == DType::kFp64 && to == DType::kFp32) {
    const auto* values = reinterpret_cast<const double*>(source.data());
    std::transform(values, values + count, reinterpret_cast<float*>(out->data()),
                   [](double value) { return static_cast<float>(value); });
  } else if (from == DType::kFp64) {
    host::CastFp64ToHalf(to, reinterpret_cast<const double*>(source.data()),
                         reinterpret_cast<uint16_t*>(out->data()), count);
  } else {
    host::CastFp32ToHalf(to, reinterpret_cast<const float*>(source.data()),
                         reinterpret_cast<uint16_t*>(out->data()), count);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateSnapshot>> StateSnapshot::Create(const JobRegions& regions,
                                                                     const Request& request) {
  if (regions.group()->initialized.load(std::memory_order_acquire) == 0)
    return absl::FailedPreconditionError("the job has no values yet");
  auto snapshot = std::unique_ptr<StateSnapshot>(new StateSnapshot());
  snapshot->request_ = request;
  snapshot->layout_ = regions.layout();
  snapshot->local_ = regions.local();
  ASSIGN_OR_RETURN(snapshot->tensors_, LiveTensors(regions.layout(), regions.config().optimizer,
                                                   request.parameters, request.moments));
  ASSIGN_OR_RETURN(snapshot->memory_, JobMemory::Create(regions.layout(), regions.config()));
  for (const LiveTensor& tensor : snapshot->tensors_) {
    const DType stored = snapshot->memory_.units()[tensor.unit].full_dtype;
    RETURN_IF_ERROR(CheckDType(stored, request.dtype.value_or(stored),
                               ParameterOf(snapshot->layout_, tensor).spec.name));
  }
  ASSIGN_OR_RETURN(snapshot->group_, Mapping::CreateWhole(regions.group_fd(), Access::kReadWrite));
  snapshot->counts_ =
      UpdateCounts(snapshot->group_.data() + kGroupPageBytes, snapshot->memory_.num_parameters());
  RETURN_IF_ERROR(snapshot->CollectRanks(regions));
  return snapshot;
}

absl::Status StateSnapshot::CollectRanks(const JobRegions& regions) {
  const int first = local_.first(), end = first + local_.count();
  std::vector<bool> has_any(local_.count(), false);
  has_any[0] = true;  // It says which step there is, where there are only empty tensors.
  RETURN_IF_ERROR(ForEachLiveSlice(layout_, tensors_, first, end, [&](const LiveSlice& slice) {
    slices_.push_back(slice);
    has_any[slice.rank - first] = true;
    return absl::OkStatus();
  }));
  auto* page = reinterpret_cast<GroupPage*>(group_.data());
  for (int i = 0; i < local_.count(); ++i) {
    if (!has_any[i]) continue;
    UniqueFd state(fcntl(regions.state_fd(Rank(first + i)), F_DUPFD_CLOEXEC, 0));
    if (!state.valid()) return ErrnoStatus(errno, absl::StrCat("the state of rank ", first + i));
    ranks_.push_back({first + i, std::move(state), &page->ranks[i], std::nullopt});
  }
  return absl::OkStatus();
}

StateSnapshot::~StateSnapshot() { ReleaseAll(); }

StateSnapshot::RankState& StateSnapshot::Of(int rank) {
  return *std::find_if(ranks_.begin(), ranks_.end(),
                       [rank](const RankState& state) { return state.rank == rank; });
}

DType StateSnapshot::StoredDType(const LiveSlice& slice) const {
  return memory_.units()[tensors_[slice.tensor].unit].full_dtype;
}

absl::StatusOr<int64_t> StateSnapshot::Hold() {
  int64_t newest = 0;
  for (RankState& rank : ranks_) {
    ASSIGN_OR_RETURN(const int64_t step, HoldNewest(&rank.record->hold, rank.record->applied_step));
    rank.held = step;
    newest = std::max(newest, step);
  }
  return newest;
}

absl::StatusOr<StateSnapshot::Copied> StateSnapshot::CopyAt(int64_t step, absl::Duration patience,
                                                            absl::FunctionRef<bool()> cancelled) {
  for (RankState& rank : ranks_) {
    if (!rank.held.has_value() || *rank.held > step) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank.rank, " does not hold step ", step, " or one before it"));
    }
    RETURN_IF_ERROR(
        Annotate(MoveHold(&rank.record->hold, *rank.held, step), absl::StrCat("rank ", rank.rank)));
    rank.held = step;
  }
  const absl::Time deadline = absl::Now() + patience;
  for (RankState& rank : ranks_) RETURN_IF_ERROR(AwaitStep(&rank, step, deadline, cancelled));
  int64_t size_bytes = 0;
  for (const LiveSlice& slice : slices_) size_bytes += slice.numel * SizeBytes(StoredDType(slice));
  ASSIGN_OR_RETURN(spool_, SpoolFile::Create(request_.spool_folder, size_bytes));
  std::string buffer;
  for (const LiveSlice& slice : slices_)
    RETURN_IF_ERROR(CopySlice(slice, step, &buffer, cancelled));
  const Copied copied = ReadProgress(step);
  if (!ReleaseAll()) {
    return absl::AbortedError(
        absl::StrCat("step ", step, " was copied for too long: training went on without waiting"));
  }
  ranks_.clear();
  return copied;
}

absl::Status StateSnapshot::AwaitStep(RankState* rank, int64_t step, absl::Time deadline,
                                      absl::FunctionRef<bool()> cancelled) {
  while (rank->record->applied_step.load(std::memory_order_acquire) < step) {
    if (cancelled()) return absl::CancelledError("the reader is gone");
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank->rank, " has not completed step ", step, ", which is decided"));
    }
    const uint32_t seen = rank->record->applied_version.value.load(std::memory_order_acquire);
    if (rank->record->applied_step.load(std::memory_order_acquire) >= step) break;
    WaitForChange(&rank->record->applied_version, seen, std::min(deadline, now + kSlice));
  }
  return absl::OkStatus();
}

absl::Status StateSnapshot::CopySlice(const LiveSlice& slice, int64_t step, std::string* buffer,
                                      absl::FunctionRef<bool()> cancelled) {
  const RankState& rank = Of(slice.rank);
  const LiveTensor& tensor = tensors_[slice.tensor];
  const int64_t element_bytes = SizeBytes(StoredDType(slice));
  int64_t from =
      memory_.StateOffsetBytes(static_cast<StateArray>(tensor.array), static_cast<int>(step % 2)) +
      memory_.units()[tensor.unit].shard_offset_bytes + slice.shard_begin_elements * element_bytes;
  buffer->resize(kCopyBytes);
  for (int64_t left = slice.numel * element_bytes; left > 0;) {
    if (cancelled()) return absl::CancelledError("the reader is gone");
    if (rank.record->hold.held.load() != step + 1) break;  // In vain: ReleaseAll() will say so.
    RETURN_IF_ERROR(FaultPoint("snapshot.copy"));
    const ssize_t got = pread(rank.state.get(), buffer->data(), std::min(left, kCopyBytes), from);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ErrnoStatus(got < 0 ? errno : EIO, "a rank's state");
    RETURN_IF_ERROR(spool_->Append(buffer->data(), got));
    from += got;
    left -= got;
  }
  return absl::OkStatus();
}

// While a rank holds `step` nobody decides the step that takes its place in the page.
StateSnapshot::Copied StateSnapshot::ReadProgress(int64_t step) const {
  const auto* page = reinterpret_cast<const GroupPage*>(group_.data());
  Copied copied;
  copied.trained_step = page->decisions[step % 2].trained_step.load(std::memory_order_relaxed);
  for (const int parameter : request_.parameters)
    copied.update_counts.push_back(counts_.CountOf(step, parameter));
  return copied;
}

bool StateSnapshot::ReleaseAll() {
  bool stood = true;
  for (RankState& rank : ranks_) {
    if (!rank.held.has_value()) continue;
    stood = Release(&rank.record->hold, *rank.held) && stood;
    rank.held.reset();
  }
  return stood;
}

absl::StatusOr<std::optional<StateSnapshot::Piece>> StateSnapshot::Next() {
  if (next_slice_ == slices_.size()) return std::nullopt;
  if (!spool_.has_value()) return absl::FailedPreconditionError("nothing was copied");
  const LiveSlice& slice = slices_[next_slice_];
  const DType stored = StoredDType(slice), wanted = request_.dtype.value_or(stored);
  const int64_t count = std::min(slice.numel - done_elements_, kMaxPieceBytes / SizeBytes(stored));
  Piece piece;
  piece.offset_elements = slice.begin_elements + done_elements_;
  piece.bytes.resize(count * SizeBytes(stored));
  RETURN_IF_ERROR(spool_->Read(offset_bytes_, piece.bytes.data(), piece.bytes.size()));
  offset_bytes_ += count * SizeBytes(stored);
  done_elements_ += count;
  if (done_elements_ == slice.numel) {
    ++next_slice_;
    done_elements_ = 0;
  }
  if (wanted != stored) {
    const std::string source = std::move(piece.bytes);
    piece.bytes.clear();
    Convert(stored, source, wanted, &piece.bytes);
  }
  return piece;
}

}  // namespace tessera
