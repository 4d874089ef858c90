#!/bin/sh
export PYTHONPATH="$PWD/client/python/tests" PYTHONDONTWRITEBYTECODE=1
exec python3 -u tests/monitoring/monitoring_test.py
