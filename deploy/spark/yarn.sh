#!/bin/bash
# All jobs on YARN, the driver in the cluster: deploy/spark/yarn.sh [--job NAME] [--once]
# JARS and ARCHIVES are as for standalone.sh. The configuration is submitted as a file. It may contain secrets, so only
# its owner may read it; YARN's copy is private, too.
set -eu

: "${JARS:?set it to the folder of the jars}"
: "${ARCHIVES:?set it to the folder of grouptrail.zip and site-packages.zip}"
here=$(cd "$(dirname "$0")" && pwd)

exec spark-submit \
  --master yarn --deploy-mode cluster \
  --properties-file "$here/spark.conf" --load-spark-defaults \
  --conf spark.yarn.maxAppAttempts=100 \
  --conf spark.yarn.am.attemptFailuresValidityInterval=1h \
  --conf spark.yarn.appMasterEnv.PYTHONPATH=site-packages \
  --conf spark.executorEnv.PYTHONPATH=site-packages \
  --jars "$(find "$JARS" -name '*.jar' | sort | paste -sd, -)" \
  --py-files "$ARCHIVES/grouptrail.zip" \
  --archives "$ARCHIVES/site-packages.zip#site-packages" \
  --files "${GROUPTRAIL_CONFIG:-grouptrail.toml}#grouptrail.toml" \
  "$here/submit.py" --config grouptrail.toml "$@"
