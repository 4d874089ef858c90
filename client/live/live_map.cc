#include "tessera/live_map.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/live/live_entries.h"
#include "client/live/mapped_source.h"
#include "client/live/worker_grant.h"

namespace tessera {
namespace {

// Of versions that are gone before they are mapped.
constexpr int kMaxTries = 8;
// The one after the next is a number, too.
constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max() - 2;
// Of versions that are gone before they are read.
constexpr int kMaxVisits = 3;
constexpr size_t kMaxChunkBytes = 1 << 20;  // As LiveSink says; whole elements of any dtype.
// For a rank that is one step late.
constexpr absl::Duration kStepPatience = absl::Seconds(10);
constexpr int kYields = 100;
constexpr absl::Duration kLook = absl::Microseconds(50);

// Keeps what it is given.
class MemorySink : public LiveSink {
 public:
  absl::Status Begin(const LiveVersion& version) override {
    version_ = version;
    entries_.clear();
    bytes_.clear();
    return absl::OkStatus();
  }
  absl::Status Entry(const LiveEntry& entry) override {
    entries_.push_back({entry, {}});
    bytes_.emplace_back(entry.size_bytes);
    done_bytes_ = 0;
    return absl::OkStatus();
  }
  absl::Status Chunk(int64_t, absl::string_view bytes) override {
    bytes.copy(bytes_.back().data() + done_bytes_, bytes.size());
    done_bytes_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  const LiveVersion& version() const { return version_; }
  const std::vector<MappedEntry>& Entries() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (bytes_[i].empty()) continue;
      entries_[i].spans = {absl::string_view(bytes_[i].data(), bytes_[i].size())};
    }
    return entries_;
  }

 private:
  LiveVersion version_;
  std::vector<MappedEntry> entries_;
  std::vector<std::vector<char>> bytes_;  // By entry.
  int64_t done_bytes_ = 0;                // Of the last one.
};

// As LiveReader::Get gives it.
absl::Status Feed(const LiveVersion& version, absl::Span<const MappedEntry> entries,
                  LiveSink* sink) {
  RETURN_IF_ERROR(sink->Begin(version));
  for (const MappedEntry& mapped : entries) {
    RETURN_IF_ERROR(sink->Entry(mapped.entry));
    const int64_t element_bytes = SizeBits(mapped.entry.dtype) / 8;
    int64_t done_bytes = 0;
    for (absl::string_view span : mapped.spans) {
      while (!span.empty()) {
        const absl::string_view chunk = span.substr(0, kMaxChunkBytes);
        RETURN_IF_ERROR(sink->Chunk(done_bytes / element_bytes, chunk));
        done_bytes += static_cast<int64_t>(chunk.size());
        span.remove_prefix(chunk.size());
      }
    }
  }
  return absl::OkStatus();
}

// What `visit` made of a map; nothing where none could be had, or none stood for long enough.
std::optional<absl::StatusOr<VisitedState>> VisitMap(const LiveReaderOptions& options,
                                                     const LiveQuery& query, LiveVisit visit) {
  if (options.through_coordinator || options.worker_addresses.empty()) return std::nullopt;
  absl::StatusOr<std::unique_ptr<LiveMap>> map = LiveMap::Open(options, query);
  // Nothing else can be asked, or it would say the same.
  if (absl::IsInvalidArgument(map.status()) || (!map.ok() && options.coordinator_address.empty()))
    return map.status();
  // Its retries are bounded: each one takes a whole step of training.
  for (int visits = 0; map.ok() && visits < kMaxVisits; ++visits) {
    if (visits > 0 && !(*map)->Refresh().ok()) break;
    const absl::Status visited = visit((*map)->version(), (*map)->entries());
    // Whatever the visit made of torn values is thrown away, its error too.
    if (!(*map)->Validate()) continue;
    if (!visited.ok()) return visited;
    return VisitedState{(*map)->version(), true};
  }
  return std::nullopt;
}

}  // namespace

LiveMap::LiveMap() = default;
LiveMap::~LiveMap() = default;

absl::StatusOr<std::unique_ptr<LiveMap>> LiveMap::Open(const LiveReaderOptions& options,
                                                       const LiveQuery& query) {
  auto map = std::unique_ptr<LiveMap>(new LiveMap());
  map->has_groups_ = query.moments;
  RETURN_IF_ERROR(map->Ask(options, EncodeLiveQuery(query)));
  RETURN_IF_ERROR(map->CheckAnswers());
  RETURN_IF_ERROR(map->FindPlaces());
  RETURN_IF_ERROR(map->Refresh());
  return map;
}

absl::Status LiveMap::Ask(const LiveReaderOptions& options, const v1::LiveStateQuery& query) {
  if (options.worker_addresses.empty()) {
    return absl::InvalidArgumentError(
        "to map a job's state, name the worker of this node that has the job: worker_addresses is "
        "empty");
  }
  for (const std::string& address : options.worker_addresses) {
    ASSIGN_OR_RETURN(workers_.emplace_back(), WorkerGrant::Open(address, query));
  }
  // The elements of a tensor follow each other as the ranks do.
  std::sort(workers_.begin(), workers_.end(), [](const auto& a, const auto& b) {
    return a->answer().first_rank() < b->answer().first_rank();
  });
  return absl::OkStatus();
}

absl::Status LiveMap::CheckAnswers() const {
  const v1::LiveMapAnswer& first = workers_[0]->answer();
  for (size_t i = 1; i < workers_.size(); ++i) {
    const v1::LiveMapAnswer& other = workers_[i]->answer();
    const std::string who = absl::StrCat(workers_[i - 1]->who(), " and ", workers_[i]->who());
    if (other.first_rank() == workers_[i - 1]->answer().first_rank())
      return absl::InvalidArgumentError(absl::StrCat(who, " are one"));
    // One that lost its coordinator may hold memory that the job has no more. It is in an epoch of
    // the past then.
    if (other.generation() != first.generation() || other.epoch() != first.epoch()) {
      return absl::UnavailableError(absl::StrCat(
          who, " are not in one epoch of the job: ", other.epoch(), " is not ", first.epoch()));
    }
    bool is_same = other.tensors_size() == first.tensors_size();
    for (int t = 0; is_same && t < first.tensors_size(); ++t)
      is_same = other.tensors(t).SerializeAsString() == first.tensors(t).SerializeAsString();
    if (!is_same) return absl::DataLossError(absl::StrCat(who, " have other tensors"));
  }
  return absl::OkStatus();
}

absl::Status LiveMap::FindPlaces() {
  const v1::LiveMapAnswer& answer = workers_[0]->answer();
  int parameter = -1;
  for (const v1::LiveTensorInfo& info : answer.tensors()) {
    MappedEntry& mapped = entries_.emplace_back();
    ASSIGN_OR_RETURN(mapped.entry, LiveEntryOf(info));
    if (mapped.entry.array == LiveArray::kParameter) ++parameter;
    counts_.push_back(mapped.entry.array == LiveArray::kBuffer ? -1 : parameter);
  }
  places_.resize(entries_.size());
  std::vector<int64_t> found_bytes(entries_.size(), 0);
  for (size_t w = 0; w < workers_.size(); ++w) {
    const v1::LiveMapGiven& given = workers_[w]->source().given();
    if (given.parameters_size() != parameter + 1) {
      return absl::DataLossError(
          absl::StrCat(workers_[w]->who(), " gave the numbers of other parameters"));
    }
    for (int number = 0; number < given.slices_size(); ++number) {
      const v1::LiveMapSlice& slice = given.slices(number);
      const int tensor = slice.tensor();
      if (tensor < 0 || tensor >= static_cast<int>(entries_.size()))
        return absl::DataLossError(absl::StrCat(workers_[w]->who(), " gave tensor ", tensor));
      const LiveEntry& entry = entries_[tensor].entry;
      const int64_t element_bytes = SizeBits(entry.dtype) / 8;
      // Aligned by elements, since readers use them as such. Written so that no sum can overflow.
      if (slice.size_bytes() > entry.size_bytes - found_bytes[tensor] ||
          slice.size_bytes() % element_bytes != 0 ||
          slice.even_offset_bytes() % element_bytes != 0 ||
          slice.odd_offset_bytes() % element_bytes != 0) {
        return absl::DataLossError(absl::StrCat("tensor '", entry.name, "': ", workers_[w]->who(),
                                                " gave another part of it than it has"));
      }
      found_bytes[tensor] += slice.size_bytes();
      places_[tensor].push_back({static_cast<int>(w), number});
    }
  }
  // Not more and not less, so that spans cover each entry.
  for (size_t i = 0; i < entries_.size(); ++i) {
    const LiveEntry& entry = entries_[i].entry;
    if (found_bytes[i] < entry.size_bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(workers_[0]->who(),
                       ": other workers have ranks of the job: name them all, or fetch its "
                       "state; tensor '",
                       entry.name, "' has ", entry.size_bytes, " bytes, of which ", found_bytes[i],
                       " are here"));
    }
    entries_[i].spans.resize(places_[i].size());
  }
  return absl::OkStatus();
}

bool LiveMap::Stands(int64_t step) const {
  for (const auto& worker : workers_)
    if (!worker->source().Stands(step)) return false;
  return true;
}

bool LiveMap::Validate() const { return Stands(version_.committed_step); }

absl::Status LiveMap::AwaitWhole(int64_t step) const {
  const absl::Time deadline = SteadyNow() + kStepPatience;
  for (const auto& worker : workers_) {
    for (int looks = 0; !worker->source().IsWhole(step); ++looks) {
      // The words of a read-only mapping cannot be slept on: their writer would not be told.
      if (looks < kYields) {
        std::this_thread::yield();
        continue;
      }
      // Training has passed it: waiting longer is in vain.
      if (!Stands(step)) break;
      if (SteadyNow() > deadline)
        return absl::UnavailableError(
            absl::StrCat("some rank has not completed step ", step, ", which is decided"));
      absl::SleepFor(kLook);
    }
  }
  // After the wait: whole, and not overwritten yet.
  if (Stands(step)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("step ", step, " is overwritten already"));
}

absl::Status LiveMap::Show(int64_t step) {
  RETURN_IF_ERROR(AwaitWhole(step));
  // Numbers are read like the values: they count only if the step still stands afterwards.
  const MappedNumbers numbers = workers_[0]->source().Numbers(step);
  if (!Stands(step))
    return absl::AbortedError(absl::StrCat("step ", step, " is overwritten already"));
  version_.generation = workers_[0]->answer().generation();
  version_.committed_step = step;
  version_.trained_step = numbers.trained_step;
  version_.num_entries = static_cast<int64_t>(entries_.size());
  version_.size_bytes = workers_[0]->answer().size_bytes();
  if (has_groups_) version_.groups = numbers.groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].entry.update_count = counts_[i] < 0 ? 0 : numbers.update_counts[counts_[i]];
    for (size_t j = 0; j < places_[i].size(); ++j) {
      const Place& place = places_[i][j];
      entries_[i].spans[j] = workers_[place.worker]->source().Slice(place.slice, step);
    }
  }
  return absl::OkStatus();
}

absl::Status LiveMap::Refresh() {
  absl::Status status;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    for (const auto& worker : workers_) {
      const absl::Status ended = worker->why_ended();
      if (ended.ok()) continue;
      return absl::UnavailableError(absl::StrCat("nothing newer is mapped: ", ended.message()));
    }
    int64_t newest = 0;
    // Some rank has applied it, so it is decided. The others are waited for.
    for (const auto& worker : workers_) newest = std::max(newest, worker->source().Newest());
    // Words of shared memory are untrusted: the step after the next is computed from it.
    if (newest > kMaxStep)
      return absl::DataLossError(absl::StrCat("a worker says that step ", newest, " is there"));
    status = Show(newest);
    if (!absl::IsAborted(status)) return status;
  }
  return absl::AbortedError(
      absl::StrCat("steps are faster than they can be mapped: ", status.message()));
}

absl::StatusOr<VisitedState> VisitLiveState(const LiveReaderOptions& options,
                                            const LiveQuery& query, LiveVisit visit) {
  if (auto visited = VisitMap(options, query, visit); visited.has_value()) return *visited;
  ASSIGN_OR_RETURN(const std::unique_ptr<LiveReader> reader, LiveReader::Open(options));
  MemorySink sink;
  RETURN_IF_ERROR(reader->Get(query, &sink).status());
  RETURN_IF_ERROR(visit(sink.version(), sink.Entries()));
  return VisitedState{sink.version(), false};
}

absl::StatusOr<VisitedState> CopyLiveState(const LiveReaderOptions& options, LiveReader* reader,
                                           const LiveQuery& query, LiveSink* sink) {
  const auto feed = [sink](const LiveVersion& version, absl::Span<const MappedEntry> entries) {
    return Feed(version, entries, sink);
  };
  // A visit of torn values is made again, and the fetch below may follow one: the sink gets another
  // Begin each time, on which it forgets what it had.
  if (auto copied = VisitMap(options, query, feed); copied.has_value()) return *copied;
  ASSIGN_OR_RETURN(const LiveVersion version, reader->Get(query, sink));
  return VisitedState{version, false};
}

}  // namespace tessera
