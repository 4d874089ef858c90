#!/bin/sh
# The page in a real browser: see browser_test.py. Debian's packages are there for Debian's Python.
set -eu
export PYTHONPATH="$PWD/client/python/tests" PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 -u tests/dashboard/browser_test.py
