// Loads any given model into jobs of 1 to 8 ranks, each through a real coordinator, worker and
// executors (threads), saves it from each, reads it over gRPC as a process outside the job,
// and saves it again after a step. tools/real-model runs it.
//
//   real_model MODEL OUT    writes OUT/{world,live,trained}{1..8}.safetensors
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "client/cli/live_file.h"
#include "client/live/live_client.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

constexpr int kMaxWorldSize = 8;

// A unit for each module, which is what stands before the last dot of a tensor's name; those of the
// root come first.
absl::StatusOr<ModelSpec> SpecOf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> model, OpenModel(path));
  std::map<std::string, UnitSpec> units;
  for (const auto& [name, info] : model->tensors()) {
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "root" : name.substr(0, dot);
    units[module].name = module;
    units[module].parameters.push_back({name, info.shape, DType::kFp32});
  }
  ModelSpec spec;
  for (auto& [module, unit] : units) spec.units.push_back(std::move(unit));
  return spec;
}

// The same gradients on every rank, so that as many ranks as one likes make the same of them.
absl::Status TrainStep(const ModelSpec& model, Session* session) {
  for (size_t unit = 0; unit < model.units.size(); ++unit) {
    RETURN_IF_ERROR(session->Unshard(unit));
    RETURN_IF_ERROR(session->Reshard(unit));
    const std::vector<TensorSpec>& parameters = model.units[unit].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      ASSIGN_OR_RETURN(const int64_t numel, Numel(parameters[p]));
      std::vector<float> gradient(numel);
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = std::sin(1.0f + static_cast<float>(i));
      RETURN_IF_ERROR(session->AddGradient(unit, p, gradient));
    }
    RETURN_IF_ERROR(session->Reduce(unit));
  }
  return session->Step().status();
}

absl::Status ReadLive(const LocalCluster& cluster, const std::string& job,
                      const std::string& path) {
  ASSIGN_OR_RETURN(const auto client, LiveClient::Create({cluster.coordinator_address()}));
  v1::LiveStateQuery query;
  query.set_job_id(job);
  return cli::SaveLiveState(client.get(), query, LiveClient::Way::kDirectIfPossible, path, nullptr)
      .status();
}

absl::Status LoadAndSave(const std::string& path, const std::string& out, const ModelSpec& spec,
                         int world_size, LocalCluster* cluster) {
  const auto out_path = [&](const char* kind) {
    return absl::StrCat(out, "/", kind, world_size, ".safetensors");
  };
  SessionOptions options =
      testing_support::ToyOptions(*cluster, absl::StrCat("world", world_size), world_size);
  options.model = spec;
  ASSIGN_OR_RETURN(testing_support::TrainerTeam team, testing_support::TrainerTeam::Open(options));
  RETURN_IF_ERROR(team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadModel(session, path).status());
    return session->Save(out_path("world"));
  }));
  RETURN_IF_ERROR(ReadLive(*cluster, options.job_id, out_path("live")));
  return team.RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(TrainStep(spec, session));
    return session->Save(out_path("trained"));
  });
}

absl::Status Run(const std::string& path, const std::string& out) {
  ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(path));
  LocalCluster::Options options;
  options.num_devices = kMaxWorldSize * (kMaxWorldSize + 1) / 2;
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster, LocalCluster::Start(options));
  for (int world_size = 1; world_size <= kMaxWorldSize; ++world_size)
    RETURN_IF_ERROR(LoadAndSave(path, out, spec, world_size, cluster.get()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: real_model MODEL OUT\n");
    return 2;
  }
  const absl::Status status = tessera::Run(argv[1], argv[2]);
  if (!status.ok()) fprintf(stderr, "real_model: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
