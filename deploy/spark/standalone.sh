#!/bin/bash
# All jobs on a standalone cluster, the driver on this machine: deploy/spark/standalone.sh [--job NAME] [--once]
# SPARK_MASTER is the cluster's master, JARS a folder with the jars of Delta and of Spark's Kafka connector, ARCHIVES the
# folder written by `make archive`: see README.md.
set -eu

: "${SPARK_MASTER:?set it to the master, such as spark://spark-1.example:7077}"
: "${JARS:?set it to the folder of the jars}"
: "${ARCHIVES:?set it to the folder of grouptrail.zip and site-packages.zip}"
here=$(cd "$(dirname "$0")" && pwd)
# The driver runs on this machine; Spark unpacks archives only for executors.
export PYTHONPATH="$ARCHIVES/grouptrail.zip:$ARCHIVES/site-packages"

exec spark-submit \
  --master "$SPARK_MASTER" \
  --properties-file "$here/spark.conf" --load-spark-defaults \
  --jars "$(find "$JARS" -name '*.jar' | sort | paste -sd, -)" \
  --py-files "$ARCHIVES/grouptrail.zip" \
  --archives "$ARCHIVES/site-packages.zip#site-packages" \
  --conf spark.executorEnv.PYTHONPATH=site-packages \
  "$here/submit.py" --config "${GROUPTRAIL_CONFIG:-grouptrail.toml}" "$@"
