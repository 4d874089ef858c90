#include "coordinator/service/live/map_service.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/utf8.h"
#include "job/live_plan.h"

namespace tessera::coordinator {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);

// Whether both are the same memory: devices may differ.
bool IsSameMemory(const std::vector<RankPlacement>& a, const std::vector<RankPlacement>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const RankPlacement& x, const RankPlacement& y) {
                      return x.worker == y.worker && x.incarnation == y.incarnation;
                    });
}

// One client's call.
class MapCall {
 public:
  MapCall(CoordinatorHost* host, MapHub* hub, const LiveTimes& times,
          LiveMapService::Stream* stream)
      : host_(host), hub_(hub), times_(times), context_(stream->context()), stream_(stream) {}
  ~MapCall() { CloseLines(); }

  absl::Status Plan(const v1::LiveStateQuery& query, const Gate::Caller& caller) {
    job_ = JobId(query.job_id());
    ASSIGN_OR_RETURN(const JobView view, host_->GetJob(job_));
    RETURN_IF_ERROR(Gate::CheckSame(view, caller));
    generation_ = view.generation;
    ASSIGN_OR_RETURN(plan_, PlanLiveRead(view.spec->model, view.spec->config, query));
    RETURN_IF_ERROR(CheckLiesAsAskedFor(plan_));
    return MappableJob().status();
  }
  const JobId& job() const { return job_; }

  absl::Status Run() {
    RETURN_IF_ERROR(OpenLines());
    RETURN_IF_ERROR(Tell());
    SteadyNotification client_ended;
    ASSIGN_OR_RETURN(std::thread reader, StartThread("a client that maps state", [&] {
                       v1::LiveStateQuery more;
                       while (stream_->Read(&more)) continue;
                       client_ended.Notify();
                     }));
    absl::Status status;
    while (status.ok() && !client_ended.WaitWithTimeout(kWatchInterval)) status = CheckStillThere();
    if (!status.ok()) TellEnd(status, &client_ended);
    reader.join();
    return status;
  }

 private:
  // The status reaches the client once the client has ended its side, as `last` asks it to. A
  // client that does not end it, or reads nothing, is disconnected.
  void TellEnd(const absl::Status& why, SteadyNotification* client_ended) {
    CloseLines();  // First, so that what the workers give does not wait for the client.
    v1::LiveMapReply last;
    last.mutable_ended()->set_code(why.raw_code());
    last.mutable_ended()->set_message(PrintableUtf8(why.message()));
    SteadyNotification written;
    absl::StatusOr<std::thread> writer = StartThread("the end of a client's map", [&] {
      (void)stream_->Write(last);
      written.Notify();
    });
    const bool in_time = writer.ok() && written.WaitWithTimeout(times_.client) &&
                         client_ended->WaitWithTimeout(times_.client);
    if (!in_time) context_->TryCancel();
    if (writer.ok()) writer->join();
  }

  void CloseLines() {
    for (const auto& line : lines_) {
      hub_->Forget(session_, line->worker());
      line->Close();
    }
    lines_.clear();
  }

  absl::Status CheckStillThere() const {
    for (const auto& line : lines_) {
      if (line->has_ended())
        return absl::UnavailableError(absl::StrCat("worker '", line->worker(), "' is gone"));
    }
    ASSIGN_OR_RETURN(const JobView view, MappableJob());
    if (IsSameMemory(view.status.placements, placements_)) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("job '", job_.value(), "' has begun again"));
  }

  // The job that was planned for, which has values.
  // Errors: Aborted             it was deleted meanwhile
  //         FailedPrecondition  it is over, or has no values yet
  absl::StatusOr<JobView> MappableJob() const {
    absl::StatusOr<JobView> view = host_->GetJob(job_);
    const std::string what = absl::StrCat("job '", job_.value(), "'");
    if (absl::IsNotFound(view.status()) || (view.ok() && view->generation != generation_))
      return absl::AbortedError(absl::StrCat(what, " was deleted meanwhile"));
    RETURN_IF_ERROR(view.status());
    RETURN_IF_ERROR(CheckNotOver(job_, view->status));
    if (view->status.bound) return view;
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has no values yet: it has not begun: ", view->status.reason));
  }

  absl::Status OpenLines() {
    ASSIGN_OR_RETURN(const JobView view, MappableJob());
    placements_ = view.status.placements;
    const int world_size = static_cast<int>(placements_.size());
    std::vector<bool> is_asked(world_size, false);
    RETURN_IF_ERROR(
        ForEachLiveSlice(*plan_.layout, plan_.tensors, 0, world_size, [&](const LiveSlice& slice) {
          is_asked[slice.rank] = true;
          return absl::OkStatus();
        }));
    // At least one worker has to report the step.
    if (std::find(is_asked.begin(), is_asked.end(), true) == is_asked.end()) is_asked[0] = true;
    v1::LiveMapOffer offer;
    offer.mutable_parameters()->Add(plan_.parameters.begin(), plan_.parameters.end());
    offer.set_moments(plan_.moments);
    offer.mutable_buffers()->Add(plan_.buffers.begin(), plan_.buffers.end());
    session_ = MapHub::NewSession();
    std::map<WorkerId, int> workers;
    line_of_rank_.assign(world_size, -1);
    for (int rank = 0; rank < world_size; ++rank) {
      if (!is_asked[rank]) continue;
      const WorkerId& worker = placements_[rank].worker;
      const auto [it, is_new] = workers.emplace(worker, static_cast<int>(lines_.size()));
      line_of_rank_[rank] = it->second;
      if (is_new) lines_.push_back(std::make_shared<MapLine>(worker.value(), offer));
    }
    for (const auto& line : lines_) {
      hub_->Expect(session_, line);
      if (!host_->SendCommand(WorkerId(line->worker()), ServeState{job_, generation_, session_}))
        return absl::UnavailableError(
            absl::StrCat("worker '", line->worker(), "' is not connected"));
    }
    return absl::OkStatus();
  }

  absl::Status Tell() {
    v1::LiveMapReply ready;
    const absl::Time deadline = SteadyNow() + times_.answer;
    for (const auto& line : lines_) {
      ASSIGN_OR_RETURN(const std::string path,
                       line->AwaitOffered(deadline, [this] { return context_->IsCancelled(); }));
      v1::LiveMapSource* source = ready.mutable_ready()->add_sources();
      source->set_worker_id(line->worker());
      source->set_descriptor_socket(path);
      source->set_session(session_);
    }
    ASSIGN_OR_RETURN(std::vector<v1::LiveTensorInfo> tensors,
                     InfosWithExtents(plan_, line_of_rank_));
    v1::LiveMapReply reply;
    for (v1::LiveTensorInfo& tensor : tensors) {
      *reply.mutable_tensor() = std::move(tensor);
      if (!stream_->Write(reply)) return absl::CancelledError("the client is gone");
    }
    RETURN_IF_ERROR(CheckStillThere());
    ready.mutable_ready()->set_generation(generation_.value());
    ready.mutable_ready()->set_size_bytes(plan_.TotalBytes());
    if (!stream_->Write(ready)) return absl::CancelledError("the client is gone");
    return absl::OkStatus();
  }

  CoordinatorHost* const host_;
  MapHub* const hub_;
  const LiveTimes times_;
  grpc::ServerContext* const context_;
  LiveMapService::Stream* const stream_;
  JobId job_;
  Generation generation_;
  LivePlan plan_;
  std::vector<RankPlacement> placements_;  // Where the job's values are.
  std::string session_;
  std::vector<std::shared_ptr<MapLine>> lines_;
  std::vector<int> line_of_rank_;  // -1: nothing is asked of it.
};

}  // namespace

void LiveMapService::AddTo(CallServer* calls) {
  AddStream(calls, "tessera.v1.LiveMap/MapLiveState", "MapLiveState", CallKind::kWaiting, this,
            &LiveMapService::Map, kMaxMessageBytes);
}

absl::Status LiveMapService::Map(Stream* stream, v1::LiveStateQuery query) {
  grpc::ServerContext* const context = stream->context();
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({context, "MapLiveState", JobId(query.job_id())}, Right::kRead));
  absl::Status status;
  JobId job;
  {
    MapCall map(host_, hub_, times_, stream);
    RETURN_IF_ERROR(map.Plan(query, caller));
    job = map.job();
    RETURN_IF_ERROR(hub_->Enter(job, SteadyNow() + times_.answer,
                                [context] { return context->IsCancelled(); }));
    status = map.Run();
  }
  hub_->Leave(job);
  return status;
}

void LiveMapRelayService::AddTo(CallServer* calls) {
  AddStream(calls, "tessera.v1.LiveMapRelay/Relay", "LiveMapRelay", CallKind::kOfWorker, this,
            &LiveMapRelayService::Relay);
}

absl::Status LiveMapRelayService::Relay(CallStream<v1::LiveMapEvent, v1::LiveMapOffer>* stream,
                                        v1::LiveMapEvent event) {
  grpc::ServerContext* const context = stream->context();
  if (!event.has_hello())
    return absl::InvalidArgumentError("the stream does not begin with a hello");
  RETURN_IF_ERROR(
      gate_->AdmitWorker({context, "LiveMapRelay"}, event.hello().worker_id()).status());
  const std::shared_ptr<MapLine> line =
      hub_->Find(event.hello().session(), event.hello().worker_id());
  if (line == nullptr || !line->Attach([context] { context->TryCancel(); }))
    return absl::NotFoundError("nobody waits for this worker's descriptors");
  stream->call()->GiveUpPlace();
  if (stream->Write(line->offer())) {
    while (stream->Read(&event)) line->Answer(std::move(event));
  }
  line->Detach();
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
