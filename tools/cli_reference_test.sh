#!/usr/bin/env bash
# docs/reference/cli.md is what tools/make-cli-reference prints now.
set -euo pipefail
tools/make-cli-reference client/cli/tessera | diff docs/reference/cli.md - ||
  { echo "docs/reference/cli.md is not current: tools/make-cli-reference > docs/reference/cli.md" >&2; exit 1; }
