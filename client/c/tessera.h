/* Tessera's C interface: one rank's hold on a job. Bindings for other languages begin here.
 *
 *   tessera_session* session;
 *   tessera_open_options options = {.struct_size = sizeof options};
 *   options.coordinator_address = "unix:/run/tessera-coordinator/coordinator.sock"; ...
 *   if (tessera_open(&options, &session) != TESSERA_OK) puts(tessera_last_error());
 *
 * Functions that can fail return a tessera_code. The message of the calling thread's last failure is
 * tessera_last_error(). Pointers that are "out" stay as they were then.
 *
 * Structs begin with struct_size, which the caller sets to their sizeof. Fields that a newer header
 * adds are at the end, and 0 in them means what happened before. A null pointer stands for an empty
 * string or array where it says "may be null".
 *
 * Callbacks run on the calling thread within the call that they were given to. One that returns
 * something else than TESSERA_OK says why by tessera_set_error(). They must not throw through these
 * functions.
 *
 * A session and its driver are for one thread at a time; tessera_units_* may be called by several,
 * which take turns. Everything else is thread-safe. Sizes of values are in elements where it says
 * elements, else in bytes. Multi-byte values are little-endian, tensors row-major. */
#ifndef TESSERA_C_TESSERA_H_
#define TESSERA_C_TESSERA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_API __attribute__((visibility("default")))

/* Raised by each change after which an older caller would misunderstand the library. */
#define TESSERA_ABI_VERSION 3

/* gRPC's codes, by number. */
typedef enum tessera_code {
  TESSERA_OK = 0,
  TESSERA_CANCELLED = 1,
  TESSERA_UNKNOWN = 2,
  TESSERA_INVALID_ARGUMENT = 3,
  TESSERA_DEADLINE_EXCEEDED = 4,
  TESSERA_NOT_FOUND = 5,
  TESSERA_ALREADY_EXISTS = 6,
  TESSERA_PERMISSION_DENIED = 7,
  TESSERA_RESOURCE_EXHAUSTED = 8,
  TESSERA_FAILED_PRECONDITION = 9,
  TESSERA_ABORTED = 10, /* The step was undone on all ranks: tessera_recover(), then do it again. */
  TESSERA_OUT_OF_RANGE = 11,
  TESSERA_UNIMPLEMENTED = 12,
  TESSERA_INTERNAL = 13,
  TESSERA_UNAVAILABLE = 14,
  TESSERA_DATA_LOSS = 15,
  TESSERA_UNAUTHENTICATED = 16
} tessera_code;

typedef enum tessera_dtype {
  TESSERA_FP32 = 0,
  TESSERA_FP64 = 1,
  TESSERA_BF16 = 2,
  TESSERA_FP16 = 3
} tessera_dtype;

TESSERA_API const char* tessera_version(void); /* "0.1.0" */
TESSERA_API int tessera_abi_version(void);
/* Valid until the calling thread's next failure. Never null. */
TESSERA_API const char* tessera_last_error(void);
/* For callbacks: what the calling thread's failure is. May be null. */
TESSERA_API void tessera_set_error(const char* message);
/* Frees strings that functions here returned through an "out" char**. May be null. */
TESSERA_API void tessera_free(char* text);

/* --- Model and config --- */

/* The model, and how the job trains it, are JSON objects: proto/types.proto's ModelSpec and
 * JobConfig in protobuf's JSON form, with the names of the file (docs/reference/config.md). Fields
 * that are left out of a config, or of its optimizer's groups, have their defaults. An unknown key
 * is an error that names it. */

/* What each rank holds of each unit, as a job with this model and config would have it: JSON
 *   {"world_size": 2, "units": [{"name": "root", "dtype": "fp32", "size_elements": 96,
 *     "shard_elements": 48, "parameters": [{"name": "w", "shape": [5, 8], "offset_elements": 0,
 *     "numel": 40, "shared_with": ""}, ...]}, ...]}
 * Rank r holds elements [(r mod shards) * shard_elements, ...) of a unit, with its padding.
 * Errors: INVALID_ARGUMENT  naming the field, unit or parameter. */
TESSERA_API int tessera_layout_json(const char* model_json, const char* config_json, char** out);

/* --- Sessions --- */

typedef struct tessera_session tessera_session;

typedef struct tessera_open_options {
  size_t struct_size;
  const char* coordinator_address;  /* "host:port" or "unix:PATH" */
  const char* worker_address;       /* "unix:PATH": the worker of this node */
  const char* tls_certificate_path; /* All three of them, or none (null or empty). */
  const char* tls_key_path;
  const char* tls_ca_path;
  const char* job_id;
  const char* model_json;
  const char* config_json;
  int32_t rank;                  /* -1: any of the worker's without a trainer; see tessera_rank */
  int32_t insecure_connect;      /* Permits a coordinator of another node without TLS. */
  int32_t wait_if_attached;      /* For a trainer that replaces one that died. */
  int32_t unguarded_windows;     /* Parameters stay readable outside their windows. */
  double attach_timeout_seconds; /* 0: 60; then those of one wait for other ranks (0: 600) and of */
  double operation_timeout_seconds; /* the wait for the next epoch (0: 120). */
  double recover_timeout_seconds;
  int32_t executor_in_process; /* See tessera/in_process_executor.h. */
  int32_t reserved;
} tessera_open_options;

/* Creates the job if no other rank has, and attaches. Errors: those of Session::Open
 * (tessera/session.h). */
TESSERA_API int tessera_open(const tessera_open_options* options, tessera_session** out);
/* Detaches. May be null. The job is completed once all ranks are closed, none of them within a step
 * or after a step that failed. */
TESSERA_API void tessera_close(tessera_session* session);
/* The same when the process calls exit(). A status other than 0 does not complete the job. */
TESSERA_API void tessera_close_at_exit(tessera_session* session);

TESSERA_API int tessera_rank(const tessera_session* session);
TESSERA_API int tessera_world_size(const tessera_session* session);
TESSERA_API int tessera_num_units(const tessera_session* session);
/* The rank's GPU, as CUDA numbers it in this process; -1: the rank is in host memory. On a GPU the
 * parameters are there, and what the driver of units is given of gradients; all other values that
 * functions here give and take are in host memory. */
TESSERA_API int tessera_gpu(const tessera_session* session);
/* As tessera_layout_json. */
TESSERA_API int tessera_session_layout_json(const tessera_session* session, char** out);
TESSERA_API int tessera_initialized(const tessera_session* session);
TESSERA_API int64_t tessera_next_step(const tessera_session* session);
/* The job's epoch that the session is in: another one after a process of the job died. */
TESSERA_API int64_t tessera_epoch(const tessera_session* session);
/* Whether calls fail because the ranks are at different places of their programs after a
 * process of the job died, so that all programs have to be started again: exit with status 75, and
 * `tessera run` does that. The state of the last step stays. */
TESSERA_API int tessera_restart_required(const tessera_session* session);
/* How often tessera_write_parameters has been committed in the job's life. */
TESSERA_API int64_t tessera_num_writes(const tessera_session* session);
/* Shows `count` numbers as the rank's, such as "loss", instead of those reported before: in GetJob
 * and in `tessera status`. Nobody waits.
 * Errors: INVALID_ARGUMENT  more than 32, or a name that is not of [A-Za-z0-9._/-]{1,64}. */
TESSERA_API int tessera_report(tessera_session* session, const char* const* names,
                               const double* values, size_t count);
/* Whether a gradient was added since the last step. */
TESSERA_API int tessera_within_step(const tessera_session* session);
/* What the session's memory of a unit is: of parameters, ... */
TESSERA_API int tessera_compute_dtype(const tessera_session* session, int unit);
/* ... and of whole parameters, gradients and moments: TESSERA_FP32 or TESSERA_FP64. */
TESSERA_API int tessera_full_dtype(const tessera_session* session, int unit);

/* --- Values: collective; all ranks do the same, in the same order --- */

/* Fills `values`, of the unit's full dtype and zero at first. */
typedef int (*tessera_fill)(void* context, int unit, int parameter, void* values, int64_t elements);
typedef int (*tessera_read)(void* context, int unit, int parameter, const void* values,
                            int64_t elements);
/* All ranks' `own`, by rank: `all` has room for world_size * size_bytes. Before the first gradient of
 * a step. A model without any element exchanges nothing: only the own bytes are set. */
TESSERA_API int tessera_all_gather(tessera_session* session, const void* own, size_t size_bytes,
                                   void* all);
/* Once in a job's life. Errors: FAILED_PRECONDITION  it has values; ABORTED; the callback's, which
 * then are every rank's. */
TESSERA_API int tessera_initialize(tessera_session* session, tessera_fill fill, void* context);
TESSERA_API int tessera_read_parameters(tessera_session* session, int unit, tessera_read read,
                                        void* context);
/* Sets all parameters of these units, on all ranks or on none; each rank's own slice counts. */
TESSERA_API int tessera_write_parameters(tessera_session* session, const int* units,
                                         size_t num_units, tessera_fill fill, void* context);
/* One array of the optimizer's state: 0 is the first moment or the momentum, 1 the second moment.
 * Errors: INVALID_ARGUMENT  the job's optimizer has no such array. */
TESSERA_API int tessera_read_moments(tessera_session* session, int unit, int array,
                                     tessera_read read, void* context);
/* JSON: {"step": 12, "update_counts": [[12, 0], ...], "learning_rates": [1e-3, ...]}: counts by unit
 * and parameter, and the last step's rates by param group. Of this rank alone: no other is asked. */
TESSERA_API int tessera_progress_json(tessera_session* session, char** out);
/* Sets moments, update counts and the last step's number; rates stay. `fill`'s unit is unit + array *
 * num_units. */
TESSERA_API int tessera_write_optimizer_state(tessera_session* session, const char* progress_json,
                                              tessera_fill fill, void* context);

/* --- Windows: a unit's parameters are readable between these --- */

TESSERA_API int tessera_unshard(tessera_session* session, int unit);
TESSERA_API int tessera_unshard_async(tessera_session* session, int unit);
TESSERA_API int tessera_reshard(tessera_session* session, int unit);
/* A forward has ended that no backward follows, on all ranks: see Session::EndForward. */
TESSERA_API int tessera_end_forward(tessera_session* session);
TESSERA_API int tessera_closed(const tessera_session* session, int unit);
/* In the unit's compute dtype; at one address for the session's life. Null: no such parameter. */
TESSERA_API const void* tessera_parameter(const tessera_session* session, int unit, int parameter);
/* Where set, a read of a parameter outside its window, or a write, notes the name, calls `interrupt`
 * with `argument` on that thread, from a signal handler, and goes on: `interrupt` must be
 * async-signal-safe, as Python's PyErr_SetInterruptEx is. What is written is lost. Null: such a use
 * ends the process with a message. For all sessions of the process. */
TESSERA_API void tessera_on_outside_window(int (*interrupt)(int), int argument);
/* What the first such use since the last call was, as a sentence; empty if there was none. Puts the
 * pages back: call it where `interrupt` leads, on the thread that trains. */
TESSERA_API int tessera_take_outside_window(char** out);
/* The handler of SIGSEGV again, where other code has put its own in the place. */
TESSERA_API void tessera_install_fault_handler(void);

/* --- Gradients --- */

typedef struct tessera_gradient {
  const void* values;
  int64_t elements;
  int32_t parameter;
  int32_t dtype; /* tessera_dtype; widened to the unit's full dtype. */
} tessera_gradient;

/* Adds them to what the unit has since its last reduction. Errors: those of Session::AddGradient. */
TESSERA_API int tessera_add_gradients(tessera_session* session, int unit,
                                      const tessera_gradient* gradients, size_t num_gradients);
TESSERA_API int tessera_reduce(tessera_session* session, int unit);
TESSERA_API int tessera_drop_gradients(tessera_session* session);
TESSERA_API int tessera_drop_unit_gradients(tessera_session* session, int unit);
/* The reduced gradients of the step under way, whole. */
TESSERA_API int tessera_read_gradients(tessera_session* session, int unit, tessera_read read,
                                       void* context);

/* --- Steps --- */

typedef struct tessera_hyper_parameters {
  double learning_rate, beta1, beta2, epsilon, weight_decay, momentum;
} tessera_hyper_parameters;

typedef struct tessera_step_options {
  size_t struct_size;
  double learning_rate_scale;             /* 0: 1 */
  double gradient_divisor;                /* 0: 1 */
  const tessera_hyper_parameters* groups; /* Of the config's groups, all or none. May be null. */
  size_t num_groups;
  double weight; /* Counts if has_weight: see StepOptions::weight. */
  int32_t has_weight;
  int32_t skip_non_finite;
} tessera_step_options;

typedef struct tessera_step_result {
  size_t struct_size;
  int64_t step;         /* The last one that was taken. */
  double gradient_norm; /* Before clipping. */
  int32_t skipped;
  int32_t reserved;
} tessera_step_result;

/* `options` and `result` may be null. Errors: those of Session::Step. */
TESSERA_API int tessera_step(tessera_session* session, const tessera_step_options* options,
                             tessera_step_result* result);
TESSERA_API int tessera_clip_grad_norm(tessera_session* session, double max_norm, double p,
                                       const tessera_step_options* options, double* norm);
/* Waits for the next epoch after ABORTED. */
TESSERA_API int tessera_recover(tessera_session* session);
/* Gives this error to every rank; they return it. TESSERA_ABORTED: it undoes the step on all ranks, as
 * if a process of the job had died. tessera_recover() next. */
TESSERA_API int tessera_fail(tessera_session* session, int code, const char* message);
/* Runs `body` (forward, backward, tessera_step), again while a process's death undid it. Errors:
 * those of Session::RunStep. */
TESSERA_API int tessera_run_step(tessera_session* session, int (*body)(void* context),
                                 void* context);

/* --- The rank's own slices, for an optimizer of the caller's --- */

typedef struct tessera_shards tessera_shards;

typedef struct tessera_part {
  size_t struct_size;
  int32_t unit, parameter;
  int64_t begin_elements, numel; /* Of the flattened parameter. */
  void* values;                  /* In the unit's full dtype; at one address for life. */
  void* gradient;                /* Holds values between begin and commit. */
} tessera_part;

TESSERA_API int tessera_shards_open(tessera_session* session, tessera_shards** out);
TESSERA_API void tessera_shards_close(tessera_shards* shards); /* Before its session. */
TESSERA_API int tessera_shards_size(const tessera_shards* shards);
TESSERA_API int tessera_shards_part(tessera_shards* shards, int part, tessera_part* out);
TESSERA_API int tessera_shards_has_gradient(const tessera_shards* shards, int part);
TESSERA_API int tessera_shards_begin(tessera_shards* shards, const tessera_step_options* options,
                                     tessera_step_result* result);
TESSERA_API int tessera_shards_commit(tessera_shards* shards);

/* --- Buffers and files --- */

typedef struct tessera_tensor {
  size_t struct_size;
  const char* name;
  const char* dtype; /* As a safetensors file calls it: "F32", "I64", "BOOL". */
  const int64_t* shape;
  size_t num_dimensions;
  const void* values; /* Null: only described. */
  size_t size_bytes;
} tessera_tensor;

/* A list of tensors that owns its bytes. */
typedef struct tessera_tensors tessera_tensors;
TESSERA_API tessera_tensors* tessera_tensors_new(void);
TESSERA_API void tessera_tensors_delete(tessera_tensors* tensors); /* May be null. */
/* Copies. Errors: INVALID_ARGUMENT  an unknown dtype, or not the bytes of the shape. */
TESSERA_API int tessera_tensors_add(tessera_tensors* tensors, const tessera_tensor* tensor);
TESSERA_API size_t tessera_tensors_size(const tessera_tensors* tensors);
/* Points into the list, until it is changed. */
TESSERA_API int tessera_tensors_get(const tessera_tensors* tensors, size_t index,
                                    tessera_tensor* out);

/* How saves and loads reach what the model has beside parameters. */
typedef struct tessera_trainer_tensors {
  size_t struct_size;
  /* Adds the tensors, with or without values. */
  int (*get)(void* context, int with_values, tessera_tensors* out);
  int (*take)(void* context, const tessera_tensors* loaded);
  void* context; /* Lives as long as the session. */
} tessera_trainer_tensors;
TESSERA_API int tessera_set_trainer_tensors(tessera_session* session,
                                            const tessera_trainer_tensors* tensors);

/* The buffers of the model_json, as a part of the job's state: see client/session/buffer_hooks.h. */
typedef struct tessera_buffer_hooks {
  size_t struct_size;
  int (*stage)(void* context);
  void (*take)(void* context);
  void (*begin_step)(void* context);
  int (*restore)(void* context);
  void* context; /* Lives as long as the session. */
} tessera_buffer_hooks;
TESSERA_API int tessera_set_buffer_hooks(tessera_session* session,
                                         const tessera_buffer_hooks* hooks);
TESSERA_API int tessera_set_buffer(tessera_session* session, int buffer, const void* values,
                                   size_t size_bytes);
/* `out` is valid until the next operation. `given`: whether another than this rank's trainer set
 * it last. `sequence`, 0 if it was never set, changes whenever it is set. */
TESSERA_API int tessera_get_buffer(tessera_session* session, int buffer, const void** out,
                                   size_t* size_bytes, int* given, uint64_t* sequence);
/* Sets what the state's last version has, or, to continue a job of others, calls `restore`. */
TESSERA_API int tessera_restore_buffers(tessera_session* session);
TESSERA_API int tessera_resume_buffers(tessera_session* session);

/* One safetensors file, or with max_file_bytes above 0 a folder of them. `dtype`: null for full
 * precision, "fp32", "bf16" or "fp16". */
TESSERA_API int tessera_save_model(tessera_session* session, const char* path,
                                   int64_t max_file_bytes, const char* dtype);
/* `report_json`, which may be null: {"missing": [...], "unexpected": [...]}. */
TESSERA_API int tessera_load_model(tessera_session* session, const char* path, int strict,
                                   char** report_json);

typedef struct tessera_checkpoint_options {
  size_t struct_size;
  const void* trainer_state; /* This rank's own bytes. May be null. */
  size_t trainer_state_bytes;
  int64_t max_file_bytes; /* 0: one file */
  int32_t keep_newest;    /* 0: all */
  int32_t in_background;
  int32_t keep_existing; /* A checkpoint that is at the path is not replaced: ALREADY_EXISTS. */
  int32_t in_parts;
} tessera_checkpoint_options;
/* `options` may be null. Errors: those of SaveCheckpoint (tessera/checkpoint.h). */
TESSERA_API int tessera_save_checkpoint(tessera_session* session, const char* path,
                                        const tessera_checkpoint_options* options);
TESSERA_API int tessera_await_save(tessera_session* session);
/* Checkpoints that other processes request (`tessera save`) are made within the step that the ranks
 * agree on, without trainer state. After tessera_defer_requested_saves, which all ranks call once,
 * the caller makes them with its own state: where tessera_requested_save is not 0 after a step, all
 * ranks call tessera_make_requested_save, in the same place, before the next one and before what
 * sets values. How it ended is the requester's to know. */
TESSERA_API void tessera_defer_requested_saves(tessera_session* session);
TESSERA_API int tessera_requested_save(const tessera_session* session);
/* `refusal`, which may be null: why this rank has no state to save, which fails the save. */
TESSERA_API int tessera_make_requested_save(tessera_session* session, const void* trainer_state,
                                            size_t trainer_state_bytes, const char* refusal);
/* `description_json`: {"step": 12, "world_size": 2, "missing": [], "unexpected": []}. The trainer
 * state is that of the rank of this number, or of rank 0 if the job that saved had none; a string of
 * `*trainer_state_bytes` bytes, for tessera_free. Outputs may be null. */
TESSERA_API int tessera_load_checkpoint(tessera_session* session, const char* path, int strict,
                                        int model_only, char** description_json,
                                        char** trainer_state, size_t* trainer_state_bytes);

/* --- Live state: of a job that trains, for a process outside of it --- */

typedef struct tessera_live_options {
  size_t struct_size;
  const char* coordinator_address;
  const char* tls_certificate_path; /* All three of them, or none (null or empty). */
  const char* tls_key_path;
  const char* tls_ca_path;
  const char* job_id;
  const char* const* include; /* Patterns of names, with * and ?. None: all. */
  const char* const* exclude;
  size_t num_include, num_exclude;
  const char* dtype; /* "fp32", "bf16", "fp16": rounded to that. May be null. */
  int32_t insecure_connect;
  int32_t moments;    /* The optimizer's state too, as "state.NAME.exp_avg". */
  int32_t no_buffers; /* Without rank 0's buffers. */
  int32_t reserved;
} tessera_live_options;
/* Adds the tensors to `out`, all of one committed step. `description_json`, which may be null:
 * {"step": 12, "committed_step": 12, "generation": 1, "aliases": {"tied": "w"}}. Errors: those of
 * LiveReader (tessera/live_reader.h). */
TESSERA_API int tessera_live_read(const tessera_live_options* options, tessera_tensors* out,
                                  char** description_json);

/* --- A driver of windows, prefetch and reduction: see client/units/unit_driver.h --- */

typedef struct tessera_units tessera_units;
typedef struct tessera_forward tessera_forward;

typedef struct tessera_unit_work {
  int32_t unit, nodes, gradients;
} tessera_unit_work;

/* `num_modules` has a number for each unit. The session outlives the driver. `root` is the unit of
 * the whole model; -1: none. */
TESSERA_API int tessera_units_new(tessera_session* session, const int* num_modules, int root,
                                  tessera_units** out);
TESSERA_API void tessera_units_delete(tessera_units* units); /* May be null. */
TESSERA_API int tessera_units_begin_forward(tessera_units* units, int unit, tessera_forward** out);
/* `model_ended`, which may be null: whether the whole model's forward has ended. */
TESSERA_API int tessera_units_end_forward(tessera_units* units, tessera_forward* forward,
                                          int module, int* model_ended);
TESSERA_API void tessera_units_abandon_forward(tessera_units* units, tessera_forward* forward);
/* Its graph is gone. Also after an error or abandon. */
TESSERA_API void tessera_forward_delete(tessera_forward* forward);
TESSERA_API int tessera_units_in_backward(tessera_units* units);
TESSERA_API int tessera_units_begin_backward(tessera_units* units, const tessera_unit_work* work,
                                             size_t num_work);
TESSERA_API int tessera_units_begin_node(tessera_units* units, tessera_forward* forward);
TESSERA_API int tessera_units_end_node(tessera_units* units, tessera_forward* forward);
/* Adds gradients of parameters of the unit, and reduces or closes it where the backward has come to
 * that. `elements` is -1 for a parameter that got no gradient after all. On a GPU `values` are in
 * its memory, and are read for as long as tessera_units_reads(). */
TESSERA_API int tessera_units_gradients(tessera_units* units, int unit,
                                        const tessera_gradient* gradients, size_t num_gradients);
/* Whether gradients that were given of the unit may still be read: keep them until then. After the
 * end of a backward none are. */
TESSERA_API int tessera_units_reads(tessera_units* units, int unit);
/* Of ranks on a GPU: the caller's work is on this stream, CUDA's CUstream, from now on; it exists
 * until another one is told. Windows end and gradients are read after what it was given before, and
 * after what the earlier ones were. A caller that asks for a step, a write or a load has waited for
 * its streams first, since these overwrite parameters. So has one that calls tessera_reshard()
 * itself: only the driver knows of streams. */
TESSERA_API void tessera_units_set_stream(tessera_units* units, void* stream);
TESSERA_API int tessera_units_end_backward(tessera_units* units, int failed);
/* Between steps: forwards that an exception ended are forgotten. */
TESSERA_API void tessera_units_begin_step(tessera_units* units);
TESSERA_API void tessera_units_set_reshard_after_forward(tessera_units* units, int unit,
                                                         int reshard);
/* Whether the unit's gradients are reduced by backward; returns what it was. */
TESSERA_API int tessera_units_set_sync(tessera_units* units, int unit, int sync);
/* `ahead`: units to ask for when this one's forward (backward) begins. */
TESSERA_API void tessera_units_set_forward_prefetch(tessera_units* units, int unit,
                                                    const int* ahead, size_t num_ahead);
TESSERA_API void tessera_units_set_backward_prefetch(tessera_units* units, int unit,
                                                     const int* ahead, size_t num_ahead);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_C_TESSERA_H_ */
