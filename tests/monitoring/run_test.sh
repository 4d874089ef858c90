#!/bin/sh
exec python3 -B tests/monitoring/monitoring_test.py
