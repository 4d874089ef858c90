#include "worker/keeper/state_snapshot.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "kernels/kernels.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

// How often a wait looks whether it was cancelled.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

absl::Status CheckDType(DType stored, DType wanted, const std::string& tensor) {
  // A reader may ask for fewer bits, never for bits that are not there.
  const bool narrower = wanted == DType::kFp32 || IsHalf(wanted);
  if (wanted == stored || narrower) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor, "' is kept in ", Name(stored),
                                                 ": it cannot be read as ", Name(wanted)));
}

void Convert(DType from, const char* source, DType to, char* out, int64_t numel) {
  if (from == DType::kFp64 && to == DType::kFp32) {
    const auto* values = reinterpret_cast<const double*>(source);
    std::transform(values, values + numel, reinterpret_cast<float*>(out),
                   [](double value) { return static_cast<float>(value); });
  } else if (from == DType::kFp64) {
    host::CastFp64ToHalf(to, reinterpret_cast<const double*>(source),
                         reinterpret_cast<uint16_t*>(out), numel);
  } else {
    host::CastFp32ToHalf(to, reinterpret_cast<const float*>(source),
                         reinterpret_cast<uint16_t*>(out), numel);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateSnapshot>> StateSnapshot::Create(const JobRegions& regions,
                                                                     const Request& request) {
  RETURN_IF_ERROR(regions.CheckHasValues());
  auto snapshot = std::unique_ptr<StateSnapshot>(new StateSnapshot());
  snapshot->request_ = request;
  snapshot->layout_ = regions.layout();
  snapshot->local_ = regions.local();
  snapshot->own_groups_ = {regions.config().groups.begin(), regions.config().groups.end()};
  ASSIGN_OR_RETURN(snapshot->tensors_,
                   LiveTensors(regions.layout(), regions.config().optimizer, request.parameters,
                               request.moments, request.buffers));
  ASSIGN_OR_RETURN(snapshot->memory_, JobMemory::Create(regions.layout(), regions.config()));
  for (const LiveTensor& tensor : snapshot->tensors_) {
    if (tensor.array == LiveArray::kBuffer) continue;
    const DType stored = snapshot->memory_.units()[tensor.unit].full_dtype;
    RETURN_IF_ERROR(CheckDType(stored, request.dtype.value_or(stored),
                               ParameterOf(snapshot->layout_, tensor).spec.name));
  }
  // Writable, for holds and waits. Of its own, since the job may be dropped while it is read.
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
  if (!request_.buffers.empty() && local_.Has(0)) {
    ASSIGN_OR_RETURN(buffers_, regions.OpenGroup());
  }
  auto* page = reinterpret_cast<GroupPage*>(group_.data());
  for (int i = 0; i < local_.count(); ++i) {
    if (!has_any[i]) continue;
    ASSIGN_OR_RETURN(std::unique_ptr<MemoryReader> state, regions.OpenState(Rank(first + i)));
    ranks_.push_back({first + i, std::move(state), &page->ranks[i], std::nullopt});
  }
  return absl::OkStatus();
}

// A reader that ends in any way must not hold training up until the executor's deadline.
StateSnapshot::~StateSnapshot() { ReleaseAll(); }

const StateSnapshot::RankState& StateSnapshot::Of(int rank) const {
  return *std::find_if(ranks_.begin(), ranks_.end(),
                       [rank](const RankState& state) { return state.rank == rank; });
}

DType StateSnapshot::StoredDType(const LiveSlice& slice) const {
  return memory_.units()[tensors_[slice.tensor].unit].full_dtype;
}

int64_t StateSnapshot::ElementBytes(const LiveSlice& slice) const {
  if (!IsBuffer(slice)) return SizeBytes(StoredDType(slice));
  return SizeBits(BufferOf(layout_, tensors_[slice.tensor]).dtype) / 8;
}

int64_t StateSnapshot::StoredBytes(const Chunk& chunk) const {
  return chunk.numel * ElementBytes(slices_[chunk.slice]);
}

int64_t StateSnapshot::OffsetBytes(const LiveSlice& slice) const {
  const LiveTensor& tensor = tensors_[slice.tensor];
  const int version = static_cast<int>(step_ % 2);
  if (IsBuffer(slice)) {
    const BufferPlacement& buffers = memory_.buffers();
    return BufferSlotsOffsetBytes(memory_, 0) + version * buffers.bank_bytes() +
           buffers.offset_bytes(tensor.job_parameter);
  }
  return memory_.StateOffsetBytes(static_cast<StateArray>(tensor.array), version) +
         memory_.units()[tensor.unit].shard_offset_bytes +
         slice.shard_begin_elements * ElementBytes(slice);
}

absl::StatusOr<int64_t> StateSnapshot::Hold() {
  int64_t newest = 0;
  for (RankState& rank : ranks_) {
    // A hold for each rank that has any of it. If one fails, the destructor releases the others.
    ASSIGN_OR_RETURN(const int64_t step, HoldNewest(&rank.record->hold, rank.record->applied_step));
    rank.held = step;
    newest = std::max(newest, step);
  }
  return newest;
}

absl::StatusOr<StateSnapshot::Progress> StateSnapshot::Begin(int64_t step, absl::Duration patience,
                                                             absl::FunctionRef<bool()> cancelled) {
  // The coordinator chose the newest step that any worker reported, so nobody goes back.
  for (RankState& rank : ranks_) {
    if (!rank.held.has_value() || *rank.held > step) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank.rank, " does not hold step ", step, " or one before it"));
    }
    // Keeps the older version until this one is there: no rank can pass it.
    RETURN_IF_ERROR(
        Annotate(MoveHold(&rank.record->hold, *rank.held, step), absl::StrCat("rank ", rank.rank)));
    rank.held = step;
  }
  step_ = step;
  const absl::Time deadline = SteadyNow() + patience;
  for (RankState& rank : ranks_) RETURN_IF_ERROR(AwaitStep(&rank, step, deadline, cancelled));
  ASSIGN_OR_RETURN(spool_, SpoolFile::Create(request_.spool_folder, CutIntoChunks()));
  // From here on copier and sender claim chunks from both ends.
  absl::MutexLock lock(&mu_);
  back_ = chunks_.size();
  return ReadProgress();
}

int64_t StateSnapshot::CutIntoChunks() {
  int64_t offset_bytes = 0;
  for (size_t slice = 0; slice < slices_.size(); ++slice) {
    const int64_t most = kMaxPieceBytes / ElementBytes(slices_[slice]);
    for (int64_t begin = 0; begin < slices_[slice].numel; begin += most) {
      chunks_.push_back({static_cast<int>(slice), begin,
                         std::min(most, slices_[slice].numel - begin), offset_bytes});
      offset_bytes += StoredBytes(chunks_.back());
    }
  }
  return offset_bytes;
}

absl::Status StateSnapshot::AwaitStep(RankState* rank, int64_t step, absl::Time deadline,
                                      absl::FunctionRef<bool()> cancelled) {
  while (rank->record->applied_step.load(std::memory_order_acquire) < step) {
    // A hold may have been taken away, and the rank may have died.
    if (cancelled()) return absl::CancelledError("the reader is gone");
    const absl::Time now = SteadyNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank->rank, " has not completed step ", step, ", which is decided"));
    }
    // The word before the second look at the step: a wake-up in between is not lost.
    const uint32_t seen = rank->record->applied_version.value.load(std::memory_order_acquire);
    if (rank->record->applied_step.load(std::memory_order_acquire) >= step) break;
    WaitForChange(&rank->record->applied_version, seen, std::min(deadline, now + kSlice));
  }
  return absl::OkStatus();
}

const StateSnapshot::Chunk* StateSnapshot::ClaimLast() {
  // After a failure nobody begins anything more.
  absl::MutexLock lock(&mu_);
  if (!failure_.ok() || front_ == back_) return nullptr;
  ++num_claims_;
  return &chunks_[--back_];
}

const StateSnapshot::Chunk* StateSnapshot::ClaimFirst() {
  absl::MutexLock lock(&mu_);
  if (!failure_.ok() || front_ == back_) return nullptr;
  // From the front, since they are sent in order. The copier takes from the back.
  ++num_claims_;
  return &chunks_[front_++];
}

void StateSnapshot::EndClaim(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  --num_claims_;
  // The first failure is the cause.
  if (failure_.ok()) failure_ = status;
  MaybeLetGo();
}

void StateSnapshot::MaybeLetGo() {
  // The hold ends as soon as nobody reads the memory, not when the client has everything.
  if (let_go_ || num_claims_ > 0 || (failure_.ok() && front_ < back_)) return;
  // A hold that was taken away voids what was copied meanwhile.
  if (!ReleaseAll() && failure_.ok()) {
    failure_ = absl::AbortedError(absl::StrCat(
        "step ", step_, " was copied for too long: training continued without waiting"));
  }
  // Last: who waits for it looks at failure_ next.
  let_go_ = true;
}

absl::Status StateSnapshot::ReadHeld(const Chunk& chunk, char* into) const {
  RETURN_IF_ERROR(FaultPoint("snapshot.copy"));
  const LiveSlice& slice = slices_[chunk.slice];
  const RankState& rank = Of(slice.rank);
  MemoryReader& memory = IsBuffer(slice) ? *buffers_ : *rank.state;
  const int64_t from = OffsetBytes(slice) + chunk.begin_elements * ElementBytes(slice);
  RETURN_IF_ERROR(memory.Read(into, from, StoredBytes(chunk)));
  std::atomic_thread_fence(std::memory_order_acquire);  // The look comes after what was read.
  // Looked at after each chunk: a torn read stops at once, not at the end.
  if (rank.record->hold.held.load() == step_ + 1) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", slice.rank, " did not wait until step ", step_,
                                         " was copied: training continued"));
}

absl::Status StateSnapshot::Copy(absl::FunctionRef<bool()> cancelled) {
  std::string buffer;
  while (const Chunk* chunk = ClaimLast()) {
    buffer.resize(kMaxPieceBytes);
    absl::Status status =
        cancelled() ? absl::CancelledError("the reader is gone") : ReadHeld(*chunk, buffer.data());
    if (status.ok())
      status = spool_->WriteAt(chunk->offset_bytes, buffer.data(), StoredBytes(*chunk));
    EndClaim(status);
  }
  absl::MutexLock lock(&mu_);
  // If no chunk was left to claim, nobody else lets go.
  MaybeLetGo();
  mu_.Await(absl::Condition(&let_go_));  // What others have claimed ends by itself.
  return failure_;
}

// While a rank holds a step nobody decides the one that takes its place in the page.
StateSnapshot::Progress StateSnapshot::ReadProgress() const {
  const auto* page = reinterpret_cast<const GroupPage*>(group_.data());
  const TrainingProgress at =
      LoadProgress(*page, counts_, step_, static_cast<int>(own_groups_.size()));
  Progress progress;
  progress.trained_step = at.step;
  for (const int parameter : request_.parameters)
    progress.update_counts.push_back(at.update_counts[parameter]);
  // Before the first step the job's are the only ones.
  progress.groups = at.step > 0 && at.groups.size() == own_groups_.size() ? at.groups : own_groups_;
  return progress;
}

bool StateSnapshot::ReleaseAll() {
  bool stood = true;
  for (RankState& rank : ranks_) {
    if (!rank.held.has_value()) continue;
    // False where the executor took the hold away.
    stood = Release(&rank.record->hold, *rank.held) && stood;
    rank.held.reset();
    rank.state.reset();
  }
  return stood;
}

bool StateSnapshot::HasBegunToWrite(int64_t step) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [step](const RankState& rank) {
    return rank.record->hold.writing.load(std::memory_order_relaxed) >= step;
  });
}

absl::Status StateSnapshot::ReadNext(char* into) {
  if (const Chunk* chunk = ClaimFirst()) {
    const absl::Status status = ReadHeld(*chunk, into);
    EndClaim(status);
    return status;
  }
  {
    absl::MutexLock lock(&mu_);
    // The copier may still be writing this chunk.
    mu_.Await(absl::Condition(&let_go_));
    RETURN_IF_ERROR(failure_);
  }
  // Chunks that ClaimFirst gave were sent from memory and are not in the file. They come before
  // this.
  return spool_->Read(chunks_[next_].offset_bytes, into, StoredBytes(chunks_[next_]));
}

absl::StatusOr<std::optional<StateSnapshot::Piece>> StateSnapshot::Next(Room room) {
  if (!spool_.has_value()) return absl::FailedPreconditionError("it has not begun");
  if (next_ == chunks_.size()) return std::nullopt;
  // An executor waits for this hold: it is served from the file from here on.
  if (HasBegunToWrite(step_ + 2)) RETURN_IF_ERROR(Copy([] { return false; }));
  const Chunk& chunk = chunks_[next_];
  const LiveSlice& slice = slices_[chunk.slice];
  Piece piece;
  piece.offset_elements = slice.begin_elements + chunk.begin_elements;
  if (IsBuffer(slice)) {
    piece.size_bytes = StoredBytes(chunk);
    RETURN_IF_ERROR(ReadNext(room(piece.size_bytes)));
    ++next_;
    return piece;
  }
  const DType stored = StoredDType(slice), wanted = request_.dtype.value_or(stored);
  piece.size_bytes = chunk.numel * SizeBytes(wanted);
  char* const into = room(piece.size_bytes);
  if (wanted == stored) {
    RETURN_IF_ERROR(ReadNext(into));
  } else {
    std::string source(StoredBytes(chunk), 0);
    RETURN_IF_ERROR(ReadNext(source.data()));
    Convert(stored, source.data(), wanted, into, chunk.numel);
  }
  ++next_;
  return piece;
}

}  // namespace tessera
