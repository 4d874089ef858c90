/* A program in C that uses the interface alone: trains a model of one unit on a cluster whose
 * addresses it is given, and prints the loss. c_program_test runs it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/c/tessera.h"

#define ELEMENTS 64

static int Check(int code, const char* what) {
  if (code == TESSERA_OK) return 0;
  fprintf(stderr, "%s: %d: %s\n", what, code, tessera_last_error());
  return 1;
}

static int Fill(void* context, int unit, int parameter, void* values, int64_t elements) {
  (void)context, (void)unit, (void)parameter;
  for (int64_t i = 0; i < elements; ++i) ((float*)values)[i] = 1.0f;
  return TESSERA_OK;
}

static int Refuse(void* context, int unit, int parameter, const void* values, int64_t elements) {
  (void)context, (void)unit, (void)parameter, (void)values, (void)elements;
  tessera_set_error("the reader is full");
  return TESSERA_RESOURCE_EXHAUSTED;
}

struct body {
  tessera_session* session;
  double loss;
};

/* loss = sum of w^2 / 2, so that its gradient is w. */
static int Body(void* context) {
  struct body* body = context;
  int code = tessera_unshard(body->session, 0);
  if (code != TESSERA_OK) return code;
  const float* w = tessera_parameter(body->session, 0, 0);
  float gradient[ELEMENTS];
  body->loss = 0;
  for (int i = 0; i < ELEMENTS; ++i) {
    gradient[i] = w[i];
    body->loss += w[i] * w[i] / 2;
  }
  code = tessera_reshard(body->session, 0);
  if (code != TESSERA_OK) return code;
  tessera_gradient given = {gradient, ELEMENTS, 0, TESSERA_FP32};
  code = tessera_add_gradients(body->session, 0, &given, 1);
  if (code != TESSERA_OK) return code;
  tessera_step_result result = {.struct_size = sizeof result};
  code = tessera_step(body->session, NULL, &result);
  return code;
}

static int Misuse(tessera_session* session) {
  if (tessera_unshard(session, 7) != TESSERA_INVALID_ARGUMENT) return 1;
  if (strstr(tessera_last_error(), "no unit 7") == NULL) return 2;
  if (tessera_parameter(session, 0, 9) != NULL) return 3;
  tessera_gradient short_one = {"", 3, 0, TESSERA_FP32};
  if (tessera_add_gradients(session, 0, &short_one, 1) != TESSERA_INVALID_ARGUMENT) return 4;
  if (strstr(tessera_last_error(), "'w'") == NULL) return 5;
  if (tessera_read_parameters(session, 0, Refuse, NULL) != TESSERA_RESOURCE_EXHAUSTED) return 6;
  if (strcmp(tessera_last_error(), "the reader is full") != 0) return 7;
  tessera_step_options no_size = {0};
  if (tessera_step(session, &no_size, NULL) != TESSERA_INVALID_ARGUMENT) return 8;
  if (tessera_open(NULL, &session) != TESSERA_INVALID_ARGUMENT) return 9;
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (tessera_abi_version() != TESSERA_ABI_VERSION) return 3;
  tessera_open_options options = {.struct_size = sizeof options};
  options.coordinator_address = argv[1];
  options.worker_address = argv[2];
  options.job_id = "c";
  options.model_json =
      "{\"units\": [{\"name\": \"root\", \"parameters\": [{\"name\": \"w\", \"shape\": [64]}]}]}";
  options.config_json =
      "{\"world_size\": 1, \"optimizer\": {\"kind\": \"OPTIMIZER_KIND_SGD\", \"groups\": "
      "[{\"learning_rate\": 0.5, \"weight_decay\": 0}]}}";
  tessera_session* session = NULL;
  if (Check(tessera_open(&options, &session), "open")) return 1;
  char* layout = NULL;
  if (Check(tessera_session_layout_json(session, &layout), "layout")) return 1;
  if (strstr(layout, "\"offset_elements\":0") == NULL) return 4;
  tessera_free(layout);
  if (Check(tessera_initialize(session, Fill, NULL), "initialize")) return 1;
  const int wrong = Misuse(session);
  if (wrong != 0) {
    fprintf(stderr, "misuse %d: %s\n", wrong, tessera_last_error());
    return 5;
  }
  struct body body = {session, 0};
  for (int step = 1; step <= 3; ++step) {
    if (Check(tessera_run_step(session, Body, &body), "step")) return 1;
    /* Each step halves w. */
    const double expected = ELEMENTS / 2.0 * pow(0.25, step - 1);
    if (fabs(body.loss - expected) > 1e-6) {
      fprintf(stderr, "step %d: loss %g instead of %g\n", step, body.loss, expected);
      return 6;
    }
  }
  if (tessera_next_step(session) != 4) return 7;
  char* progress = NULL;
  if (Check(tessera_progress_json(session, &progress), "progress")) return 1;
  if (strstr(progress, "\"step\":3") == NULL) return 8;
  if (strstr(progress, "\"learning_rates\":[0.5]") == NULL) return 9;
  tessera_free(progress);
  tessera_close(session);
  puts("trained");
  return 0;
}
