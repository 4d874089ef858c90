// Bounds of a job's fields, for every program that checks them: the coordinator when it creates the
// job, the SDK before that, the worker before it hosts the job. Pure; thread-safe. Every error is
// InvalidArgument and names the field.
#ifndef TESSERA_JOB_FIELD_LIMITS_H_
#define TESSERA_JOB_FIELD_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

constexpr int64_t kMaxParameters = 100'000;            // Of one model.
constexpr size_t kMaxNameBytes = 512;                  // Of a unit or parameter.
constexpr int64_t kMaxBuffers = 100'000;               // Of one model.
constexpr int64_t kMaxBufferBytes = int64_t{1} << 30;  // Of all of these together.
constexpr int kMaxDimensions = 16;
constexpr int32_t kMaxWorldSize = 1 << 16;  // That a message can say; see kMaxLocalRanks.

// What a worker can hold. An executor gets a few descriptors and one a rank in a single packet, of
// which the kernel allows 253; a control page has this many units and param groups.
constexpr int kMaxLocalRanks = 240;                    // Ranks of a job.
constexpr int64_t kMaxIncarnation = int64_t{1} << 62;  // Of a worker; the next ones fit, too.
constexpr int kMaxDevices = 1024;                      // Of one worker, for ranks of any jobs.
constexpr int64_t kMaxMemoryBytes = int64_t{1} << 56;  // Of one worker, and of a job's regions.
constexpr int kMaxUnits = 16384;
constexpr int kMaxParamGroups = 64;
// Reports of steps that travel with a later one's. A coordinator remembers twice as many.
constexpr int kMaxEarlierReports = 127;
// What workers tell each other of a step: a bit for each parameter, after a load the number of its
// updates, 5 bytes at most, and the groups' numbers.
constexpr int64_t kMaxDecisionBytes = kMaxParameters * 6 + (int64_t{1} << 14);
constexpr int kAttachKeyBytes = 32;

absl::Status CheckWorkerId(absl::string_view field, absl::string_view id);  // [A-Za-z0-9._-]{1,255}
// Of a number that a trainer reports.
constexpr int kMaxReportedValues = 32;
absl::Status CheckReportedName(absl::string_view name);  // [A-Za-z0-9._/-]{1,64}
absl::Status CheckName(absl::string_view field, absl::string_view name);
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max);

}  // namespace tessera

#endif  // TESSERA_JOB_FIELD_LIMITS_H_
