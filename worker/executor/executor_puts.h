// The put that this rank's executor was given by its worker, between the thread that obeys the
// worker and the engine's.
//
//   worker ── Give ──► here ◄── Offer, Read, Settle ── engine
//          ── Drop ──►      ── gone ──► worker          at once, or once the vote is settled
//
// At most one put is here. Give, Drop and EndEpoch are called by the thread that obeys the worker,
// EndEpoch once no engine runs. The file's manifest comes from the worker; the file's contents are
// checked by their sums when they are read.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_PUTS_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_PUTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "layout/tensor_spec.h"
#include "proto/executor.pb.h"
#include "worker/engine/put_source.h"

namespace tessera {

class ExecutorPuts : public PutSource {
 public:
  // Tells the worker that this rank has the put no more; `failure`: why none can take it, or "".
  // Called by any thread, with the lock held.
  using ReportGone = std::function<void(uint64_t put, const std::string& failure)>;
  // `num_parameters`: of the job, as `buffers`, which outlive this.
  ExecutorPuts(int num_parameters, const std::vector<BufferSpec>* buffers, ReportGone gone)
      : num_parameters_(num_parameters), buffers_(buffers), gone_(std::move(gone)) {}

  void Give(const v1::ExecutorPut& command, UniqueFd file);
  void Drop(uint64_t put);
  void EndEpoch();

  uint64_t Offer(uint64_t decided) override;
  const std::map<int, int64_t>& update_counts() const override;
  absl::Status Read(
      const std::vector<ShardSegment>& segments,
      absl::FunctionRef<Values(StateArray, const ShardSegment&)> values) const override;
  std::vector<int> buffers() const override;
  absl::Status ReadBuffer(int buffer, std::byte* values) const override;
  void Settle(Outcome outcome, const std::string& why) override;

 private:
  struct Range {
    int64_t numel = 0;
    int64_t offset_bytes = 0;
    uint32_t crc32 = 0;
  };
  // Parameter of the job, array, first element.
  using RangeKey = std::tuple<int, int, int64_t>;
  struct Put {
    uint64_t id = 0;
    UniqueFd file;
    std::map<RangeKey, Range> ranges;
    std::map<int, Range> buffers;
    std::map<int, int64_t> update_counts;
  };
  // Whether it has any element of this array of the parameter.
  static bool Sets(const Put& put, int job_parameter, StateArray array);
  // Errors: DataLoss  the manifest cannot be read, or is of another job.
  absl::Status ReadManifest(const v1::ExecutorPut& command, Put* put) const;
  bool IsWhole(const v1::PutManifest::Range& of_buffer) const;
  void ForgetLocked(const std::string& failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int num_parameters_;
  const std::vector<BufferSpec>* const buffers_;
  const ReportGone gone_;
  mutable absl::Mutex mu_;
  // While it is offered it stays, and the engine reads it without the lock.
  std::unique_ptr<const Put> put_ ABSL_GUARDED_BY(mu_);
  const Put* offered_ = nullptr;  // The engine's.
  bool is_offered_ ABSL_GUARDED_BY(mu_) = false;
  bool is_dropped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_PUTS_H_
