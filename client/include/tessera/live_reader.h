// Reads the state of a job while it trains, from a process outside the job: an evaluation, an
// inference, a comparison.
//
//   ASSIGN_OR_RETURN(auto reader, LiveReader::Open({"127.0.0.1:7070"}));
//   LiveQuery query;
//   query.job_id = "gpt";
//   query.include = {"head.*"};
//   query.dtype = DType::kBf16;
//   std::map<std::string, std::string> tensors;
//   ASSIGN_OR_RETURN(LiveVersion version, reader->Read(query, [&](const LiveEntry& entry) {
//     std::string& bytes = tensors[entry.name];
//     bytes.resize(entry.size_bytes);
//     return absl::MakeSpan(&bytes[0], bytes.size());
//   }));
//
// All tensors of one call are of one committed step, on all ranks. No trainer takes part, and a
// reader that is slow, hangs or dies delays nothing (docs/adr/0028). Elements come directly from
// the workers if this host reaches them all, else through the coordinator. Elements are row-major
// and little-endian, as in host memory.
// If the workers are on this host, LiveMap (live_map.h) shows the same without a copy.
//
// A reader is for one thread at a time; several may read one job, up to as many as it serves at once
// (four).
#ifndef TESSERA_LIVE_READER_H_
#define TESSERA_LIVE_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "job/job_config.h"
#include "job/live_tensors.h"
#include "layout/dtype.h"
#include "layout/stored_dtype.h"
#include "net/keepalive.h"
#include "net/transport_security.h"

namespace tessera {

class LiveClient;

struct LiveReaderOptions {
  std::string coordinator_address;  // "host:port"
  TlsFiles tls = {};                // As SessionOptions'; workers are reached by the same.
  bool insecure_connect = false;    // Permits other machines without TLS.
  absl::Duration list_timeout = absl::Seconds(10);
  bool through_coordinator = false;  // Also where this host reaches the workers.
  Keepalive keepalive = {};          // Of the connections to the coordinator and to the workers.
  // "unix:...", of all workers of the job, on this node: LiveMap asks them (live_map.h), and needs no
  // coordinator. Empty: nothing is mapped.
  std::vector<std::string> worker_addresses;
};

// Which tensors. "*" in a pattern is any bytes or none, "?" any one byte; a parameter with tied
// weights has several names, and each counts for all of it.
struct LiveQuery {
  std::string job_id;
  std::vector<std::string> include, exclude;  // Empty `include`: all.
  bool moments = false;                       // The optimizer's state of these parameters too.
  bool buffers = true;                        // Rank 0's; whole, and in their own dtype.
  // What parameters and moments are rounded to: fp32, bf16 or fp16. None: as the job keeps them.
  std::optional<DType> dtype;
};

struct LiveEntry {
  std::string name;       // Of a moment: as in a checkpoint, "state.W.exp_avg".
  std::string parameter;  // "W"; of a buffer its name.
  LiveArray array = LiveArray::kParameter;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  int64_t size_bytes = 0;
  std::vector<std::string> aliases;  // Of a parameter with tied weights: its other names.
  int param_group = 0;               // Its place in LiveVersion::groups.
  int64_t update_count = 0;          // How many updates it has had; 0 in a list.
};

struct LiveVersion {
  int64_t generation = 0;      // Of jobs of one id each has another.
  int64_t committed_step = 0;  // Counts steps, writes and puts.
  int64_t trained_step = 0;    // The last step, as trainers count.
  int64_t num_entries = 0;
  int64_t size_bytes = 0;               // Of all of them together.
  std::vector<HyperParameters> groups;  // Of that step, with LiveQuery::moments.
};

// Takes what is read, in order. An error ends the reading, which returns it.
class LiveSink {
 public:
  virtual ~LiveSink() = default;
  // Comes first; and again wherever a try failed, and what came before is void.
  virtual absl::Status Begin(const LiveVersion& version) = 0;
  virtual absl::Status Entry(const LiveEntry& entry) = 0;
  // Of the last entry, at most 1 MiB of whole elements: they leave no hole.
  virtual absl::Status Chunk(int64_t offset_elements, absl::string_view bytes) = 0;
};

class LiveReader {
 public:
  // Connects at the first call. Errors: as SessionOptions' TLS and address.
  static absl::StatusOr<std::unique_ptr<LiveReader>> Open(const LiveReaderOptions& options);
  ~LiveReader();
  LiveReader(const LiveReader&) = delete;
  LiveReader& operator=(const LiveReader&) = delete;

  // All errors name the coordinator. Of all:
  //   NotFound          no such job, or no name matches
  //   InvalidArgument   a query out of bounds; a dtype that elements cannot be rounded to
  //   Unavailable       nothing answers there, or not any more; DeadlineExceeded  not within
  //                     list_timeout
  // What Get gives, in its order; asks no worker.
  absl::StatusOr<std::vector<LiveEntry>> List(const LiveQuery& query);

  // Also:
  //   FailedPrecondition  the job has no values yet, or is lost
  //   ResourceExhausted   as many read this job's state as it serves at once; a disk is full
  //   Unavailable         a worker does not answer, or several attempts have failed
  //   Aborted             the job was deleted meanwhile
  //   DataLoss            what came is not what was said to come
  // What the sink got before an error is void.
  absl::StatusOr<LiveVersion> Get(const LiveQuery& query, LiveSink* sink);

  // Into the caller's memory: `room` says where to put an entry of size_bytes, and is called
  // once more for each where an attempt failed. That memory is written to also where this fails.
  using Room = absl::FunctionRef<absl::StatusOr<absl::Span<char>>(const LiveEntry&)>;
  absl::StatusOr<LiveVersion> Read(const LiveQuery& query, Room room);

 private:
  LiveReader(std::unique_ptr<LiveClient> client, bool through_coordinator);

  const std::unique_ptr<LiveClient> client_;
  const bool through_coordinator_;
};

}  // namespace tessera

#endif  // TESSERA_LIVE_READER_H_
