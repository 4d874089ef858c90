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
#include "client/live/map_grant.h"
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

bool IsOfTheQuery(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsInvalidArgument(status);
}

// What `visit` made of a map; nothing where none could be had, or none stood for long enough.
std::optional<absl::StatusOr<VisitedState>> VisitMap(const LiveReaderOptions& options,
                                                     const LiveQuery& query, LiveVisit visit) {
  if (options.through_coordinator) return std::nullopt;
  absl::StatusOr<std::unique_ptr<LiveMap>> map = LiveMap::Open(options, query);
  if (IsOfTheQuery(map.status())) return map.status();
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
  const v1::LiveStateQuery encoded = EncodeLiveQuery(query);
  const auto open = [&](auto by) -> absl::StatusOr<std::unique_ptr<LiveMap>> {
    auto map = std::unique_ptr<LiveMap>(new LiveMap());
    map->has_groups_ = query.moments;
    RETURN_IF_ERROR((map.get()->*by)(options, encoded));
    RETURN_IF_ERROR(map->FindPlaces());
    RETURN_IF_ERROR(map->Refresh());
    return map;
  };
  if (!options.worker_address.empty()) {
    auto map = open(&LiveMap::OpenAtWorker);
    // An error of the query is the same everywhere.
    if (map.ok() || absl::IsInvalidArgument(map.status()) || options.coordinator_address.empty())
      return map;
  }
  return open(&LiveMap::OpenByCoordinator);
}

absl::Status LiveMap::OpenAtWorker(const LiveReaderOptions& options,
                                   const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(grant_,
                   WorkerGrant::Open(options.worker_address, query, &sources_.emplace_back()));
  return absl::OkStatus();
}

absl::Status LiveMap::OpenByCoordinator(const LiveReaderOptions& options,
                                        const v1::LiveStateQuery& query) {
  ASSIGN_OR_RETURN(
      grant_, MapGrant::Open({options.coordinator_address, options.tls, options.insecure_connect},
                             options.keepalive, query));
  for (const v1::LiveMapSource& source : grant_->ready().sources()) {
    absl::StatusOr<std::unique_ptr<MappedSource>> claimed = MappedSource::Claim(source);
    // Its worker then knows the session no more, as one of another host does not.
    if (absl::IsFailedPrecondition(claimed.status()) && grant_->has_ended())
      return absl::UnavailableError(grant_->why_ended().message());
    ASSIGN_OR_RETURN(sources_.emplace_back(), std::move(claimed));
  }
  if (sources_.empty()) return absl::DataLossError("the coordinator named no worker");
  return absl::OkStatus();
}

absl::Status LiveMap::FindPlaces() {
  // Slices come in the order of the tensors: each source is read once through.
  std::vector<int> next(sources_.size(), 0);  // By source: its next slice.
  int parameter = -1;
  for (const v1::LiveTensorInfo& info : grant_->tensors()) {
    MappedEntry& mapped = entries_.emplace_back();
    std::vector<Place>& places = places_.emplace_back();
    ASSIGN_OR_RETURN(mapped.entry, LiveEntryOf(info));
    const LiveEntry& entry = mapped.entry;
    if (entry.array == LiveArray::kParameter) ++parameter;
    counts_.push_back(entry.array == LiveArray::kBuffer ? -1 : parameter);
    const int64_t element_bytes = SizeBits(entry.dtype) / 8;
    const absl::Status mismatch = absl::DataLossError(absl::StrCat(
        "tensor '", entry.name, "': its workers gave other parts of it than they have"));
    int64_t found_bytes = 0;
    for (const v1::LiveExtent& extent : info.extents()) {
      // Written so that no product can overflow.
      if (extent.source() < 0 || extent.source() >= static_cast<int>(sources_.size()) ||
          extent.numel() < 0 || extent.numel() > (entry.size_bytes - found_bytes) / element_bytes)
        return mismatch;
      const v1::LiveMapGiven& given = sources_[extent.source()]->given();
      int& slice = next[extent.source()];
      for (int64_t left_bytes = extent.numel() * element_bytes; left_bytes > 0; ++slice) {
        if (slice >= given.slices_size()) return mismatch;
        const v1::LiveMapSlice& found = given.slices(slice);
        // Aligned by elements, since readers use them as such.
        if (found.size_bytes() > left_bytes || found.size_bytes() % element_bytes != 0 ||
            found.even_offset_bytes() % element_bytes != 0 ||
            found.odd_offset_bytes() % element_bytes != 0)
          return mismatch;
        left_bytes -= found.size_bytes();
        found_bytes += found.size_bytes();
        places.push_back({extent.source(), slice});
      }
    }
    // Not more and not less, so that spans cover the entry.
    if (found_bytes != entry.size_bytes) return mismatch;
    mapped.spans.resize(places.size());
  }
  for (const auto& source : sources_) {
    if (source->given().parameters_size() != parameter + 1)
      return absl::DataLossError("a worker gave the numbers of other parameters");
  }
  return absl::OkStatus();
}

bool LiveMap::Stands(int64_t step) const {
  for (const auto& source : sources_)
    if (!source->Stands(step)) return false;
  return true;
}

bool LiveMap::Validate() const { return Stands(version_.committed_step); }

absl::Status LiveMap::AwaitWhole(int64_t step) const {
  const absl::Time deadline = SteadyNow() + kStepPatience;
  for (const auto& source : sources_) {
    for (int looks = 0; !source->IsWhole(step); ++looks) {
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
  const MappedNumbers numbers = sources_[0]->Numbers(step);
  if (!Stands(step))
    return absl::AbortedError(absl::StrCat("step ", step, " is overwritten already"));
  version_.generation = grant_->ready().generation();
  version_.committed_step = step;
  version_.trained_step = numbers.trained_step;
  version_.num_entries = static_cast<int64_t>(entries_.size());
  version_.size_bytes = grant_->ready().size_bytes();
  if (has_groups_) version_.groups = numbers.groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].entry.update_count = counts_[i] < 0 ? 0 : numbers.update_counts[counts_[i]];
    for (size_t j = 0; j < places_[i].size(); ++j) {
      const Place& place = places_[i][j];
      entries_[i].spans[j] = sources_[place.source]->Slice(place.slice, step);
    }
  }
  return absl::OkStatus();
}

absl::Status LiveMap::Refresh() {
  absl::Status status;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    if (grant_->has_ended()) {
      return absl::UnavailableError(
          absl::StrCat("nothing newer is mapped: ", grant_->why_ended().message()));
    }
    int64_t newest = 0;
    // Some rank has applied it, so it is decided. The others are waited for.
    for (const auto& source : sources_) newest = std::max(newest, source->Newest());
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
  if (auto copied = VisitMap(options, query, feed); copied.has_value()) return *copied;
  ASSIGN_OR_RETURN(const LiveVersion version, reader->Get(query, sink));
  return VisitedState{version, false};
}

}  // namespace tessera
