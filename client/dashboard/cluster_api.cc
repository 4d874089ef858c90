#include "client/dashboard/cluster_api.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/cli/flight_trace.h"
#include "client/cli/jobs_client.h"
#include "client/cli/saves_client.h"
#include "client/cli/worker_client.h"
#include "client/dashboard/shared_answers.h"
#include "client/dashboard/unit_memory.h"
#include "nlohmann/json.hpp"

namespace tessera::dashboard {
namespace {

constexpr char kJson[] = "application/json";
constexpr absl::Duration kLongestSearch = absl::Seconds(6);  // Of workers for a rank.
constexpr int kMaxRecords = 512;                             // That a page draws of a rank.
constexpr size_t kMaxUnits = 50;                             // That a page lists of a job.

absl::StatusOr<std::string> Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return json;
  return absl::InternalError("the answer cannot be written as JSON");
}

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 502;
  }
}

HttpReply ErrorReply(const absl::Status& status) {
  const nlohmann::json json = {
      {"error", absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message())}};
  return {HttpStatus(status.code()), kJson,
          json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)};
}

using Parameters = std::map<std::string, std::string>;

// Errors: InvalidArgument  names the parameter
absl::StatusOr<std::string> JobOf(const Parameters& parameters, const std::string& name) {
  const std::string& id = parameters.at(name);
  const bool is_id =
      !id.empty() && id.size() <= 63 && std::all_of(id.begin(), id.end(), [](char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
      });
  if (is_id) return id;
  return absl::InvalidArgumentError(absl::StrCat(name, ": a job's id is of [a-z0-9-]{1,63}"));
}

absl::StatusOr<int64_t> WholeNumberOf(const Parameters& parameters, const std::string& name,
                                      int64_t max) {
  int64_t number = 0;
  if (absl::SimpleAtoi(parameters.at(name), &number) && number >= 0 && number <= max) return number;
  return absl::InvalidArgumentError(absl::StrCat(name, ": needs a whole number from 0 to ", max));
}

// A model may have a hundred thousand parameters, which no page shows.
void LeaveNamesOut(v1::Job* job) {
  job->clear_model();
  for (v1::ParamGroup& group : *job->mutable_config()->mutable_optimizer()->mutable_groups())
    group.clear_parameter_names();
}

class GrpcClusterApi : public ClusterApi {
 public:
  GrpcClusterApi(std::unique_ptr<cli::JobsClient> jobs, std::unique_ptr<cli::SavesClient> saves,
                 std::vector<std::unique_ptr<cli::WorkerClient>> workers)
      : jobs_(std::move(jobs)), saves_(std::move(saves)), workers_(std::move(workers)) {}

  std::map<std::string, HttpPage> Pages() override {
    return {
        {"/api/jobs", Page({"after"}, &GrpcClusterApi::ListJobs)},
        {"/api/job", Page({"id"}, &GrpcClusterApi::GetJob)},
        {"/api/memory", Page({"job"}, &GrpcClusterApi::GetMemory)},
        {"/api/workers", Page({}, &GrpcClusterApi::ListWorkers)},
        {"/api/events", Page({"after"}, &GrpcClusterApi::ListEvents)},
        {"/api/saves", Page({"job"}, &GrpcClusterApi::ListSaves)},
        {"/api/rank", Page({"job", "rank"}, &GrpcClusterApi::GetRank)},
        {"/api/trace", Page({"job", "rank"}, &GrpcClusterApi::GetTrace)},
    };
  }

 private:
  using Method = absl::StatusOr<HttpReply> (GrpcClusterApi::*)(const Parameters&);

  // `names`: of its parameters. One that a request leaves out is empty. Others are refused, also so
  // that no request has an answer of its own for what means nothing.
  HttpPage Page(std::vector<std::string> names, Method method) {
    return [this, names = std::move(names), method](const HttpRequest& request) {
      Parameters parameters;
      for (const std::string& name : names) parameters[name];
      for (const auto& [name, value] : request.parameters) {
        if (parameters.count(name) == 0) {
          return ErrorReply(absl::InvalidArgumentError(absl::StrCat(
              "unknown parameter '", name, "'; there are: ", absl::StrJoin(names, ", "))));
        }
        parameters[name] = value;
      }
      std::string key = request.path;
      // With sizes, so that no value can look like the next one.
      for (const auto& [name, value] : parameters)
        absl::StrAppend(&key, " ", value.size(), ":", value);
      return answers_.Get(key, [&] {
        const absl::StatusOr<HttpReply> reply = (this->*method)(parameters);
        return reply.ok() ? *reply : ErrorReply(reply.status());
      });
    };
  }

  static absl::StatusOr<HttpReply> JsonReply(const google::protobuf::Message& message) {
    ASSIGN_OR_RETURN(std::string json, Json(message));
    return HttpReply{200, kJson, std::move(json)};
  }

  absl::StatusOr<HttpReply> ListJobs(const Parameters& parameters) {
    std::string after;
    if (!parameters.at("after").empty()) {
      ASSIGN_OR_RETURN(after, JobOf(parameters, "after"));
    }
    ASSIGN_OR_RETURN(v1::ListJobsResponse page, jobs_->ListJobsAfter(after));
    for (v1::Job& job : *page.mutable_jobs()) LeaveNamesOut(&job);
    return JsonReply(page);
  }

  absl::StatusOr<HttpReply> GetJob(const Parameters& parameters) {
    ASSIGN_OR_RETURN(const std::string id, JobOf(parameters, "id"));
    ASSIGN_OR_RETURN(v1::Job job, jobs_->GetJob(id));
    LeaveNamesOut(&job);
    return JsonReply(job);
  }

  absl::StatusOr<HttpReply> GetMemory(const Parameters& parameters) {
    ASSIGN_OR_RETURN(const std::string id, JobOf(parameters, "job"));
    ASSIGN_OR_RETURN(const v1::Job job, jobs_->GetJob(id));
    ASSIGN_OR_RETURN(std::string json, UnitMemoryJson(job, kMaxUnits));
    return HttpReply{200, kJson, std::move(json)};
  }

  absl::StatusOr<HttpReply> ListWorkers(const Parameters&) {
    ASSIGN_OR_RETURN(const v1::ListWorkersResponse workers, jobs_->ListWorkers());
    return JsonReply(workers);
  }

  absl::StatusOr<HttpReply> ListEvents(const Parameters& parameters) {
    int64_t after = 0;
    if (!parameters.at("after").empty()) {
      ASSIGN_OR_RETURN(after,
                       WholeNumberOf(parameters, "after", std::numeric_limits<int64_t>::max()));
    }
    v1::ListEventsRequest request;
    request.set_after_number(after);
    ASSIGN_OR_RETURN(const v1::ListEventsResponse events, jobs_->ListEvents(request));
    return JsonReply(events);
  }

  absl::StatusOr<HttpReply> ListSaves(const Parameters& parameters) {
    ASSIGN_OR_RETURN(const std::string job, JobOf(parameters, "job"));
    ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse saves, saves_->List(job));
    return JsonReply(saves);
  }

  absl::StatusOr<HttpReply> GetRank(const Parameters& parameters) {
    ASSIGN_OR_RETURN(v1::DumpRankResponse dump, DumpOf(parameters));
    const int num_left_out = std::max(0, dump.records_size() - kMaxRecords);
    dump.mutable_records()->DeleteSubrange(0, num_left_out);
    dump.clear_text();
    return JsonReply(dump);
  }

  absl::StatusOr<HttpReply> GetTrace(const Parameters& parameters) {
    ASSIGN_OR_RETURN(const v1::DumpRankResponse dump, DumpOf(parameters));
    HttpReply reply = {200, kJson, cli::FlightTrace({dump})};
    // Of characters that a file's name may have.
    reply.download_name = absl::StrCat(parameters.at("job"), "-rank-", dump.rank(), ".trace.json");
    return reply;
  }

  absl::StatusOr<v1::DumpRankResponse> DumpOf(const Parameters& parameters) {
    ASSIGN_OR_RETURN(const std::string job, JobOf(parameters, "job"));
    ASSIGN_OR_RETURN(const int64_t rank,
                     WholeNumberOf(parameters, "rank", std::numeric_limits<int32_t>::max()));
    absl::Status why_not = absl::OkStatus();
    const absl::Time deadline = SteadyNow() + kLongestSearch;
    for (const std::unique_ptr<cli::WorkerClient>& worker : workers_) {
      absl::StatusOr<v1::DumpRankResponse> dump = worker->DumpRank(job, Rank(rank));
      if (dump.ok()) return dump;
      // The rank may be on a worker that does not answer, so "not found" would be wrong.
      if (!absl::IsNotFound(dump.status())) why_not = dump.status();
      if (SteadyNow() > deadline) break;
    }
    RETURN_IF_ERROR(why_not);
    return absl::NotFoundError(
        absl::StrCat("rank ", rank, " of job '", job, "' is on ",
                     workers_.empty() ? "a worker, and this dashboard has the socket of none"
                                      : "none of the workers whose sockets this dashboard has",
                     ": run `tessera dashboard --worker SOCKET` on the rank's node"));
  }

  const std::unique_ptr<cli::JobsClient> jobs_;
  const std::unique_ptr<cli::SavesClient> saves_;
  const std::vector<std::unique_ptr<cli::WorkerClient>> workers_;
  SharedAnswers answers_{SharedAnswers::Options()};
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterApi>> ClusterApi::Create(const ClusterEndpoints& endpoints) {
  ASSIGN_OR_RETURN(auto jobs, cli::JobsClient::Create(endpoints.coordinator));
  ASSIGN_OR_RETURN(auto saves, cli::SavesClient::Create(endpoints.coordinator));
  std::vector<std::unique_ptr<cli::WorkerClient>> workers;
  for (const cli::Endpoint& endpoint : endpoints.workers) {
    ASSIGN_OR_RETURN(workers.emplace_back(), cli::WorkerClient::Create(endpoint));
  }
  return std::make_unique<GrpcClusterApi>(std::move(jobs), std::move(saves), std::move(workers));
}

}  // namespace tessera::dashboard
