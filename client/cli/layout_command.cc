#include "client/cli/layout_command.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/job_layout.h"
#include "client/cli/jobs_client.h"
#include "client/cli/layout_json.h"
#include "client/cli/model_spec_json.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "layout/layout_dump.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMaxWorldSize = 65536;
constexpr int64_t kMaxAlignmentBytes = int64_t{1} << 30;

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;
  std::string spec_path;
  int64_t world_size = 1;
  int64_t parameter_alignment_bytes = LayoutOptions().parameter_alignment_bytes;
  std::string shard_alignment = std::to_string(LayoutOptions().shard_alignment_bytes);
  std::string compute_dtype;  // Empty: each unit's own.
  MemoryOptions memory;
  bool json = false;
  bool full = false;
};

// "element" or a number of bytes; 0 bytes mean one element too.
bool ParseShardAlignment(const std::string& text, int64_t* alignment_bytes) {
  if (text == "element") {
    *alignment_bytes = 0;
    return true;
  }
  return absl::SimpleAtoi(text, alignment_bytes) && *alignment_bytes >= 0 &&
         *alignment_bytes <= kMaxAlignmentBytes;
}

std::string CheckShardAlignment(const std::string& text) {
  int64_t alignment_bytes = 0;
  if (ParseShardAlignment(text, &alignment_bytes)) return "";
  return "'" + text + "' is neither \"element\" nor a number of bytes";
}

std::string CheckComputeDType(const std::string& text) {
  const absl::StatusOr<DType> dtype = ParseDType(text);
  if (!dtype.ok()) return std::string(dtype.status().message());
  return IsFloatingPoint(*dtype) ? "" : text + " is not a floating-point type";
}

absl::StatusOr<ModelLayout> LayOut(const ModelSpec& model, const Flags& flags) {
  LayoutOptions options;
  options.parameter_alignment_bytes = flags.parameter_alignment_bytes;
  ParseShardAlignment(flags.shard_alignment, &options.shard_alignment_bytes);
  ModelLayout layout;
  layout.world_size = flags.world_size;
  layout.buffers = model.buffers;
  for (const UnitSpec& unit : model.units) {
    // The spec was validated: each unit has a parameter.
    options.alignment_dtype = unit.parameters.front().dtype;
    if (!flags.compute_dtype.empty()) {
      ASSIGN_OR_RETURN(options.alignment_dtype, ParseDType(flags.compute_dtype));
    }
    ASSIGN_OR_RETURN(FlatLayout flat, FlatLayout::Create(unit, options));
    ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(flat, flags.world_size));
    layout.units.push_back({std::move(flat), shards});
  }
  return layout;
}

// What one worker that has all ranks would map, and what each rank would that is alone on a GPU.
absl::StatusOr<WorkerMemory> MappedMemory(const ModelLayout& layout, const MemoryOptions& memory) {
  JobConfig config;
  config.world_size = layout.world_size;
  config.compute_dtype = memory.compute_dtype;
  config.gradient_slots = memory.gradient_slots;
  config.max_gathered_units = static_cast<int>(memory.max_gathered_units);
  ASSIGN_OR_RETURN(JobMemory mapped, JobMemory::Create(layout, config));
  ASSIGN_OR_RETURN(ParameterPlan on_gpu, layout.world_size > 1
                                             ? ParameterPlan::InSlots(layout, config, mapped)
                                             : ParameterPlan::InPlaces(mapped));
  return WorkerMemory{std::move(mapped), std::move(on_gpu)};
}

std::string MappedText(const JobMemory& mapped, int64_t world_size) {
  return absl::StrCat("mapped by one CPU worker with all ranks: ",
                      FormatBytes(mapped.MappedBytesOfRank(world_size)), " a rank (",
                      FormatBytes(mapped.state_region_bytes()),
                      " two versions of parameters and AdamW's state, and the reduced gradient; ",
                      FormatBytes(mapped.gradient_region_bytes()), " gradient slots; its part of ",
                      FormatBytes(mapped.parameter_region_bytes()), " shared parameters)\n");
}

std::string GpuText(const WorkerMemory& memory) {
  const ParameterPlan& parameters = memory.on_gpu;
  std::string text =
      absl::StrCat("mapped by a GPU worker with one rank: ", FormatBytes(memory.GpuBytes()), " (",
                   FormatBytes(memory.mapped.state_region_bytes()), " state, ",
                   FormatBytes(memory.mapped.device_gradient_region_bytes()), " gradient slots, ",
                   FormatBytes(parameters.total_bytes()), " parameters");
  if (parameters.num_slots() > 0) {
    absl::StrAppend(&text, ": ", parameters.num_slots(), " slots of ",
                    FormatBytes(parameters.slot_bytes()), ", and the rank's slices");
  }
  return text + ")\n";
}

absl::Status ShowJob(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::JobLayout layout, client->GetLayout(flags.job_id));
  *console.out << (flags.json ? JobLayoutJson(layout) : JobLayoutText(layout));
  return absl::OkStatus();
}

absl::Status Draw(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const ModelSpec model, ReadModelSpecFile(flags.spec_path));
  ASSIGN_OR_RETURN(const ModelLayout layout, LayOut(model, flags));
  MemoryOptions memory = flags.memory;
  memory.compute_dtype = layout.units.front().flat.options().alignment_dtype;
  ASSIGN_OR_RETURN(const WorkerMemory workers, MappedMemory(layout, memory));
  if (flags.json) return WriteLayoutJson(layout, memory, workers, console.out);
  ASSIGN_OR_RETURN(const std::string table, DumpMemory(layout, memory));
  const DumpOptions all = {/*max_pieces=*/0, /*max_ranks=*/0};
  for (const UnitLayout& unit : layout.units) {
    *console.out << DumpUnit(unit, flags.full ? all : DumpOptions());
  }
  *console.out << DumpBuffers(layout) << table << MappedText(workers.mapped, layout.world_size)
               << GpuText(workers);
  return absl::OkStatus();
}

void AddMemoryFlags(CLI::App* command, MemoryOptions* memory) {
  constexpr int64_t kMaxCount = 1024;
  command
      ->add_option("--optimizer-states", memory->optimizer_states,
                   "values per element: AdamW 2, SGD with momentum 1, SGD 0")
      ->check(WholeNumber(0, kMaxCount))
      ->capture_default_str();
  command
      ->add_option("--max-gathered-units", memory->max_gathered_units,
                   "units gathered ahead of the current one, in addition to the root")
      ->check(WholeNumber(0, kMaxCount))
      ->capture_default_str();
  command
      ->add_option("--max-gathered-bytes", memory->max_gathered_bytes,
                   "the same in bytes of unsharded parameters; 0: no limit")
      ->check(WholeNumber(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command
      ->add_option(
          "--gradient-slots", memory->gradient_slots,
          "slots for unsharded gradients, in addition to the root's; 0: one for every unit")
      ->check(WholeNumber(0, kMaxCount))
      ->capture_default_str();
  command
      ->add_option("--shard-group-size", memory->shard_group_size,
                   "show the hybrid strategies with groups of this many ranks, each on one host")
      ->check(WholeNumber(0, kMaxWorldSize))
      ->capture_default_str();
  command->add_option("--ranks-per-host", memory->ranks_per_host, "0: all ranks are on one host")
      ->check(WholeNumber(0, kMaxWorldSize))
      ->capture_default_str();
}

}  // namespace

void RegisterLayoutCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command =
      app->add_subcommand("layout", "draw how a model is cut into shards, or say how a job's is");
  auto flags = std::make_shared<Flags>();
  auto* const job =
      command->add_option("--job", flags->job_id,
                          "a job of the coordinator; with --json and where it is, nothing else");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  auto* const spec =
      command->add_option("--spec", flags->spec_path, "JSON file with the model's units")
          ->excludes(job);
  auto* const world_size = command->add_option("--world-size", flags->world_size, "number of ranks")
                               ->excludes(job)
                               ->check(WholeNumber(1, kMaxWorldSize));
  command
      ->add_option("--param-alignment", flags->parameter_alignment_bytes,
                   "bytes; where parameters start; 0: no padding between them")
      ->check(WholeNumber(0, kMaxAlignmentBytes))
      ->capture_default_str();
  command
      ->add_option("--shard-alignment", flags->shard_alignment,
                   "bytes, or \"element\"; where the ranks' slices start")
      ->check(CheckShardAlignment)
      ->capture_default_str();
  command
      ->add_option("--compute-dtype", flags->compute_dtype,
                   "dtype in which alignments are counted; default: each unit's own")
      ->check(CheckComputeDType);
  AddMemoryFlags(command, &flags->memory);
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--full", flags->full, "draw every piece of every rank");
  command->callback([flags, selected, job, spec, world_size] {
    if (job->count() == 0 && (spec->count() == 0 || world_size->count() == 0))
      throw CLI::ValidationError("layout", "needs --spec and --world-size, or --job");
    *selected = [flags](const Console& console) {
      return flags->job_id.empty() ? Draw(*flags, console) : ShowJob(*flags, console);
    };
  });
}

}  // namespace tessera::cli
